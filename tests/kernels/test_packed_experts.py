"""Experts in tiles: every byte of a stack is there once, where the layout says, and comes back."""

import pytest
import torch

from intarsia.formats.stored import Stored
from intarsia.kernels.errors import KernelError
from intarsia.kernels.experts import packed as tiles
from intarsia.kernels.experts import plan, prepare
from intarsia.kernels.experts.packed import compressed, pack, refusal, unpack

SHAPE = (3, 512, 256)


def stack(shape=SHAPE, parts=2, seed=1) -> Stored:
    generator = torch.Generator().manual_seed(seed)
    experts, rows, columns = shape
    codes = torch.randint(0, 256, (experts, rows, columns // 2), generator=generator, dtype=torch.uint8)
    scales = torch.randint(0, 127, (experts, rows, columns // 16), generator=generator, dtype=torch.uint8)
    global_scales = torch.rand([experts, parts] if parts > 1 else [experts], generator=generator)
    tensors = {"weight": codes, "weight_scale": scales.view(torch.float8_e4m3fn)}
    return Stored("NVFP4", tensors | {"weight_scale_2": global_scales}, shape)


def same(a: Stored, b: Stored) -> bool:
    return set(a) == set(b) and all(
        a[name].dtype == b[name].dtype and torch.equal(a[name].view(torch.uint8), b[name].view(torch.uint8))
        for name in a
    )


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", [SHAPE, (2, 256, 128), (1, 1024, 384)])
@pytest.mark.parametrize("scratch", [1, tiles.SCRATCH_BYTES])
def test_unpacking_gives_every_byte_back_in_the_same_memory(monkeypatch, shape, gated, scratch):
    monkeypatch.setattr(tiles, "SCRATCH_BYTES", scratch)
    stored = stack(shape)
    before = stored.clone()
    packed = pack(stored, gated=gated)
    assert packed.codes.data_ptr() == stored["weight"].data_ptr()
    assert packed.scales.data_ptr() == stored["weight_scale"].data_ptr()
    assert not torch.equal(packed.scales, before["weight_scale"].view(torch.uint8))
    assert packed.nbytes == before.nbytes
    for index in range(shape[0]):
        assert same(packed.expert(index), before.expert(index))
    assert same(unpack(packed), before)


def unmixed(codes: torch.Tensor) -> list[int]:
    """The sixteen stored bytes of four words, each bit looked up where the product's operand has it."""
    found = []
    for word in codes.clone().view(torch.int32).tolist():
        word &= 0xFFFFFFFF
        pairs = [word, rotate(word, 10), rotate(word, 13), (word & 0x001B001B) * 0x1084 & 0xFFFFFFFF]
        nibbles = [
            pairs[i % 4] >> (6 + 16 * (i // 4)) & 7 | (pairs[i % 4] >> (15 + 16 * (i // 4)) & 1) << 3
            for i in range(8)
        ]
        found += [nibbles[i] | nibbles[i + 1] << 4 for i in range(0, 8, 2)]
    return found


def rotate(word: int, left: int) -> int:
    return (word << left | word >> (32 - left)) & 0xFFFFFFFF


@pytest.mark.parametrize("gated", [False, True])
def test_bytes_lie_where_the_layout_says(gated):
    stored = stack()
    before = stored.clone()
    packed = pack(stored, gated=gated)
    experts, rows, columns = SHAPE
    codes = packed.codes.view(experts, rows // 128, columns // 128, 4, 32, 4, 16)
    scales = packed.scales.view(experts, rows // 128, columns // 128, 32, 4, 4, 2)
    for tile, step, quarter, place, lane in [
        (0, 0, 0, 0, 0),
        (1, 1, 2, 5, 3),
        (3, 0, 3, 31, 1),
        (2, 1, 1, 18, 2),
    ]:
        row = 128 * tile + 32 * quarter + place
        if gated:
            bits = f"{64 * tile + 32 * (quarter // 2) + place:08b}"
            top, (w1, w0, i1, i0, t1, t0, h) = bits[0], bits[1:]
            row = int(top + t1 + t0 + w1 + w0 + h + i1 + i0, 2) + quarter % 2 * (rows // 2)
        at = 64 * step + 16 * lane
        assert (
            unmixed(codes[1, tile, step, quarter, place, lane])
            == before["weight"][1, row, at : at + 16].tolist()
        )
        at = 8 * step + 2 * lane
        expected = before["weight_scale"].view(torch.uint8)[1, row, at : at + 2]
        assert torch.equal(scales[1, tile, step, place, lane, quarter], expected)


def test_a_stack_that_begins_at_an_odd_byte_is_refused():
    stored = stack()
    memory = torch.empty(1 + stored["weight"].numel(), dtype=torch.uint8)
    tensors = dict(stored.tensors) | {"weight": memory[1:].view(stored["weight"].shape)}
    with pytest.raises(KernelError, match="multiple of 16 bytes"):
        pack(Stored("NVFP4", tensors, SHAPE), gated=True)


@pytest.mark.parametrize("gated", [False, True])
def test_compressed_scales_give_the_stored_bytes_back_and_their_memory(gated):
    stored = stack()
    before = stored.clone()
    packed = compressed(pack(stored, gated=gated))
    assert stored["weight_scale"].untyped_storage().nbytes() == 0
    assert compressed(packed) is packed
    for index in range(SHAPE[0]):
        assert same(packed.expert(index), before.expert(index))
    assert same(unpack(packed), before)


def test_global_scales_have_a_column_for_each_part():
    assert pack(stack(parts=2), gated=True).global_scales.shape == (3, 2)
    assert pack(stack(parts=1), gated=False).global_scales.shape == (3, 1)
    stored = stack(parts=1)
    one = Stored("NVFP4", dict(stored.tensors) | {"weight_scale_2": torch.tensor(0.5)}, SHAPE)
    packed = pack(one, gated=False)
    assert packed.global_scales.tolist() == [[0.5]] * 3
    assert packed.expert(1)["weight_scale_2"].ndim == 0


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("MXFP8", SHAPE, "no tiles for MXFP8"),
        ("NVFP4", (3, 512, 192), "multiples of 128"),
        ("NVFP4", (512, 256), "multiples of 128"),
    ],
)
def test_what_cannot_be_laid_out_is_named(name, shape, words):
    assert words in refusal(name, shape)


def test_a_stack_that_cannot_be_packed_is_left_alone():
    stored = stack((2, 384, 128))
    before = stored.clone()
    with pytest.raises(KernelError, match="multiples of 128"):
        pack(stored, gated=True)
    stored["weight_scale"].view(torch.uint8)[1, 7, 3] = 0x80
    with pytest.raises(KernelError, match="negative"):
        pack(stored, gated=False)
    stored["weight_scale"].view(torch.uint8)[1, 7, 3] = before["weight_scale"].view(torch.uint8)[1, 7, 3]
    assert same(stored, before)
    with pytest.raises(KernelError, match="contiguous"):
        pack(stored.map(lambda tensor: tensor[:, ::3] if tensor.ndim == 3 else tensor), gated=False)


def test_wider_blocks_for_more_rows_and_none_that_a_narrow_stack_cannot_fill():
    def pairs(rows: int, width: int) -> int:
        return plan.form_of(rows, 8 * rows, 288, width).pairs

    assert [pairs(rows, 2048) for rows in (2, 8, 128, 512, 1024, 2048, 4096, 8192)] == [
        8, 8, 8, 24, 64, 64, 128, 256
    ]  # fmt: skip
    assert plan.form_of(2, 16, 288, 2048).quarters == 2
    assert [pairs(rows, 128) for rows in (1024, 8192)] == [24, 24]
    assert [pairs(rows, 256) for rows in (1024, 8192)] == [256, 256]


def test_where_no_kernel_reads_tiles_stacks_stay_and_compressed_scales_are_refused():
    stacks = stack(), stack((3, 256, 256), parts=1)
    assert prepare(*stacks, torch.bfloat16, torch.device("cpu")) == stacks
    with pytest.raises(KernelError, match="the device is cpu"):
        prepare(*stacks, torch.bfloat16, torch.device("cpu"), resident=True)
