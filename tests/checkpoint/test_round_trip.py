"""Writing a checkpoint and reading it back, whole and in ranges."""

import torch
from safetensors import safe_open

from intarsia.checkpoint import open_checkpoint, write_checkpoint

E8M0 = torch.tensor([[0, 127], [254, 1]], dtype=torch.uint8).view(torch.float8_e8m0fnu)


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "model.a.weight": torch.randn(6, 8, generator=generator).bfloat16(),
        "model.a.norm": torch.randn(7, generator=generator),
        "model.b.weight": torch.randn(4, 16, generator=generator).to(torch.float8_e4m3fn),
        "model.b.weight_scale": E8M0,
        "model.c.scalar": torch.tensor(3.5),
        "model.c.empty": torch.empty(0, 4),
        "model.c.flags": torch.tensor([True, False, True]),
        "model.c.words": torch.arange(5, dtype=torch.int32).view(torch.uint32),
        "model.c.plane": torch.randn(2, 3, 1, 1, 2, generator=generator).half(),
    }


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    as_bytes = [t.contiguous().reshape(-1).view(torch.uint8) for t in (left, right)]
    return left.shape == right.shape and torch.equal(*as_bytes)


def test_every_type_comes_back_bit_for_bit(tmp_path):
    source = tensors()
    written = write_checkpoint(tmp_path / "out", source.items(), config={"a": 1}, shard_size=100)
    assert len(written.shards) > 2
    with open_checkpoint(tmp_path / "out").reader() as reader:
        for name, tensor in source.items():
            assert same(reader.read(name), tensor), name


def test_other_readers_read_what_is_written(tmp_path):
    source = tensors()
    written = write_checkpoint(
        tmp_path / "out",
        source.items(),
        shard_size=200,
        shard_name=lambda i, n: f"tensors/part-{i}-of-{n}.safetensors",
    )
    seen = {}
    for shard in written.shards:
        with safe_open(shard.path, framework="pt") as file:
            seen.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    assert seen.keys() == source.keys()
    assert all(same(seen[name], source[name]) for name in source)


def test_rows_columns_and_byte_ranges(tmp_path):
    source = tensors()
    checkpoint = write_checkpoint(tmp_path / "out", source.items())
    entry = checkpoint.entry("model.a.weight")
    whole = source["model.a.weight"]
    with checkpoint.reader(buffer_bytes=1) as reader:
        assert same(reader.read_rows(entry, range(2, 5)), whole[2:5])
        assert same(reader.read_rows(entry, range(1, 6), range(3, 7)), whole[1:6, 3:7])
        assert reader.read_rows(entry, range(3, 3), range(3, 7)).shape == (0, 4)
        raw = bytearray(10)
        reader.read_into(entry, raw, 6, 16)
        assert raw == bytes(whole.view(torch.uint8).reshape(-1)[6:16].tolist())
        raw_e8m0 = reader.read("model.b.weight_scale")
        assert raw_e8m0.dtype == torch.uint8
        assert raw_e8m0.tolist() == [[0, 127], [254, 1]]


def test_tensors_read_earlier_are_not_overwritten(tmp_path):
    source = tensors()
    checkpoint = write_checkpoint(tmp_path / "out", source.items())
    entry = checkpoint.entry("model.a.weight")
    with checkpoint.reader() as reader:
        first = reader.read_rows(entry, range(6), range(4))
        kept = first.clone()
        reader.read_rows(entry, range(6), range(4, 8))
    assert same(first, kept)
