"""Writing a CSF container, reading it, and making its source again byte for byte."""

import base64
import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from intarsia.checkpoint import audit, open_checkpoint, resolve
from intarsia.checkpoint.csf_container import serving_configuration, write_container
from intarsia.checkpoint.csf_family import GEOMETRIES, ExpertGeometry
from intarsia.checkpoint.csf_restore import restore_checkpoint, restore_shard
from intarsia.checkpoint.errors import (
    ContainerError,
    InvalidCheckpointError,
    TargetExistsError,
    TensorMissingError,
)
from intarsia.core.errors import IntarsiaError
from intarsia.formats import csf
from tests.checkpoint.build import Tensors, encoded, flat, modelopt, plain

GEOMETRY = ExpertGeometry("glm53_nvfp4", experts=2, hidden=64, intermediate=32, layers=range(3, 5))
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def tensors() -> Tensors:
    """Two layers of experts, a third that stays as it is, and modules of other kinds."""
    modules = {}
    for layer in range(3, 6):
        for expert in range(2):
            for seed, projection in enumerate(("gate", "up", "down")):
                rows, columns = GEOMETRY.size(projection)
                name = GEOMETRY.module(layer, expert, projection)
                modules[name] = encoded("NVFP4", rows, columns, layer + expert + seed, input_scale=True)
            shared = modules[GEOMETRY.module(layer, expert, "gate")]["weight_scale_2"]
            modules[GEOMETRY.module(layer, expert, "up")]["weight_scale_2"] = shared.clone()
    modules["model.language_model.embed_tokens"] = plain(7, 5)
    modules["model.language_model.norm"] = {"weight": torch.linspace(0, 1, 64), "empty": torch.empty(0, 3)}
    return flat(modules)


def source(folder: Path, changes: Tensors | None = None) -> Path:
    """A checkpoint of two shards, one of them in a folder, and small files of every kind."""
    (folder / "tensors").mkdir(parents=True)
    files = {FIRST: {}, f"tensors/{SECOND}": {}}
    weight_map = {}
    for name, tensor in {**tensors(), **(changes or {})}.items():
        file = FIRST if ".layers.3." in name else f"tensors/{SECOND}"
        files[file][name] = tensor
        weight_map[name] = file
    for file, held in files.items():
        save_file(held, folder / file, metadata={"format": "pt", "note": "kept"})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    config = {"quantization_config": modelopt("NVFP4", ignore=["*embed_tokens"]), "num_hidden_layers": 6}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "README.md").write_text("# A model\n")
    (folder / "LICENSE").write_text("Terms.\n")
    return folder


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """A source and its container."""
    original = source(tmp_path / "source")
    write_container(open_checkpoint(original), tmp_path / "box", family="glm53_nvfp4", geometry=GEOMETRY)
    return original, tmp_path / "box"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_container_is_complete_and_sound(made: tuple[Path, Path]) -> None:
    original, box = made
    assert audit(box, values=True).violations == ()
    top = {path.name for path in box.iterdir()}
    documents = {"manifest.json", "build-contract.json", "verification.json", "LICENSE"}
    assert top == documents | {"tensors", "metadata", "receipts"}
    for name in ("config.json", "tokenizer.json", "README.md", "LICENSE", "model.safetensors.index.json"):
        assert (box / "metadata" / name).read_bytes() == (original / name).read_bytes()
    manifest = json.loads((box / "manifest.json").read_text())
    for row in manifest["shards"]:
        content = (box / "tensors" / row["file"]).read_bytes()
        assert row["target_file_bytes"] == len(content)
        assert row["target_sha256"] == hashlib.sha256(content).hexdigest()
        path = next(original.rglob(row["file"])).read_bytes()
        assert (row["source_file_bytes"], row["source_sha256"]) == (
            len(path),
            hashlib.sha256(path).hexdigest(),
        )
    assert manifest["compressed_scale_count"] == 12
    assert manifest["metadata_sha256"]["README.md"] == hashlib.sha256(b"# A model\n").hexdigest()


def test_only_the_scales_of_the_experts_change(made: tuple[Path, Path]) -> None:
    original, box = made
    before, after = open_checkpoint(original), open_checkpoint(box)
    compressed = {f"{module}.weight_scale" for module, _, _ in GEOMETRY.modules()}
    streams = {f"{name}.{part}" for name in compressed for part in csf.components("nvfp4_slab")}
    assert set(after.tensors) == (set(before.tensors) - compressed) | streams
    with before.reader() as old, after.reader() as new:
        for name, entry in before.tensors.items():
            if name not in compressed:
                assert torch.equal(raw(old.read(name)), raw(new.read(name))), name
                continue
            parts = {part: new.read(f"{name}.{part}") for part in csf.components("nvfp4_slab")}
            assert torch.equal(
                csf.decode(parts, *entry.shape, "nvfp4_slab"), old.read(name).view(torch.uint8)
            )
            assert csf.is_canonical(parts, *entry.shape, "nvfp4_slab")
    module = resolve(after).modules[GEOMETRY.module(3, 0, "down")]
    assert (module.format, module.codec, module.shape) == ("NVFP4", "nvfp4_slab", (64, 32))


def test_the_safetensors_library_reads_the_shards(made: tuple[Path, Path]) -> None:
    _, box = made
    with safe_open(box / "tensors" / FIRST, framework="pt") as file:
        assert file.metadata() == {
            "format": "pt",
            "schema": "lil-nvfp4-csf-checkpoint/1",
            "codec": "byte-window4-fixed-stream-u24-exceptions/1",
        }
        name = f"{GEOMETRY.module(3, 0, 'up')}.weight_scale.nvfp4_csf_fixed"
        assert file.get_tensor(name).shape == (2, 16 * (1 + 2))


def test_the_source_is_restored_byte_for_byte(made: tuple[Path, Path], tmp_path: Path) -> None:
    original, box = made
    restored = restore_checkpoint(box, tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(original)
    assert set(restored.tensors) == set(open_checkpoint(original).tensors)
    restore_shard(box, SECOND, tmp_path / "one.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (original / "tensors" / SECOND).read_bytes()


def test_a_receipt_that_keeps_only_the_json_of_the_header(made: tuple[Path, Path], tmp_path: Path) -> None:
    original, box = made
    receipt = box / "receipts" / f"{FIRST}.json"
    head = base64.b64decode(json.loads(receipt.read_text())["source_header_base64"])
    edit(receipt, source_header_base64=base64.b64encode(head[8:]).decode())
    restore_shard(box, FIRST, tmp_path / "one.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (original / FIRST).read_bytes()


def name_of(projection: str, suffix: str) -> str:
    return f"{GEOMETRY.module(4, 1, projection)}.{suffix}"


@pytest.mark.parametrize(
    ("suffix", "tensor", "rule"),
    [
        ("weight_scale", torch.zeros(32, 8, dtype=torch.float8_e4m3fn), "container-geometry"),
        ("weight_scale", torch.zeros(32, 4, dtype=torch.uint8), "container-geometry"),
        ("weight", torch.zeros(32, 16, dtype=torch.uint8), "container-geometry"),
        ("input_scale", torch.tensor(0.0), "container-globals"),
        ("input_scale", torch.tensor(float("nan")), "container-globals"),
        ("input_scale", torch.ones(2), "container-globals"),
        ("weight_scale_2", torch.tensor(1.0).bfloat16(), "container-globals"),
        ("weight_scale_2", torch.tensor(0.125), "container-globals"),
    ],
    ids=str,
)
def test_what_readers_would_refuse_is_not_written(
    tmp_path: Path, suffix: str, tensor: torch.Tensor, rule: str
) -> None:
    folder = source(tmp_path / "source", {name_of("gate", suffix): tensor})
    checkpoint = open_checkpoint(folder)
    with pytest.raises(InvalidCheckpointError) as refusal:
        write_container(checkpoint, tmp_path / "box", family="glm53_nvfp4", geometry=GEOMETRY)
    assert (rule, name_of("gate", suffix)) in {(each.rule, each.where) for each in refusal.value.violations}
    assert not (tmp_path / "box").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_checkpoint_of_another_geometry_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(source(tmp_path / "source"))
    with pytest.raises(InvalidCheckpointError) as refusal:
        write_container(checkpoint, tmp_path / "box", family="glm53_nvfp4")
    rules = {each.rule for each in refusal.value.violations}
    assert {"missing-tensor", "container-geometry"} <= rules
    with pytest.raises(ContainerError, match="glm53_nvfp4"):
        write_container(checkpoint, tmp_path / "box", family="glm53_744b_nvfp4")


def test_published_families() -> None:
    assert sum(1 for _ in GEOMETRIES["glm53_nvfp4"].modules()) == 36_288
    assert sum(1 for _ in GEOMETRIES["qwen38_flash_next_nvfp4"].modules()) == 73_728
    assert next(GEOMETRIES["glm53_nvfp4"].modules()) == (
        "model.language_model.layers.3.mlp.experts.0.up_proj",
        2048,
        4096,
    )


def test_nothing_is_replaced(made: tuple[Path, Path], tmp_path: Path) -> None:
    original, box = made
    with pytest.raises(TargetExistsError):
        write_container(open_checkpoint(original), box, family="glm53_nvfp4", geometry=GEOMETRY)
    with pytest.raises(TargetExistsError):
        restore_checkpoint(box, original)
    with pytest.raises(TargetExistsError):
        restore_shard(box, FIRST, original / FIRST)


def test_shards_of_one_name_in_two_folders_are_refused(tmp_path: Path) -> None:
    folder = source(tmp_path / "source")
    (folder / "other").mkdir()
    save_file({"model.extra.weight": torch.ones(2, 2)}, folder / "other" / FIRST)
    index = folder / "model.safetensors.index.json"
    weights = json.loads(index.read_text())["weight_map"] | {"model.extra.weight": f"other/{FIRST}"}
    edit(index, weight_map=weights)
    with pytest.raises(ContainerError, match=FIRST):
        write_container(open_checkpoint(folder), tmp_path / "box", family="glm53_nvfp4", geometry=GEOMETRY)


def test_a_changed_scale_is_named_when_restoring(made: tuple[Path, Path], tmp_path: Path) -> None:
    _, box = made
    name = f"{GEOMETRY.module(3, 1, 'gate')}.weight_scale"
    entry = open_checkpoint(box).tensors[f"{name}.nvfp4_csf_fixed"]
    shard = box / "tensors" / FIRST
    content = bytearray(shard.read_bytes())
    content[entry.begin] -= 1
    shard.write_bytes(content)
    with pytest.raises(ContainerError, match=name):
        restore_checkpoint(box, tmp_path / "again")
    content[entry.begin] = 255
    shard.write_bytes(content)
    with pytest.raises(csf.CsfError, match="nvfp4_csf_fixed"):
        restore_checkpoint(box, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_changed_weight_is_found_by_the_shards_hash(made: tuple[Path, Path], tmp_path: Path) -> None:
    _, box = made
    entry = open_checkpoint(box).tensors[f"{GEOMETRY.module(3, 1, 'gate')}.weight"]
    shard = box / "tensors" / FIRST
    content = bytearray(shard.read_bytes())
    content[entry.begin + 3] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ContainerError, match="sha256"):
        restore_checkpoint(box, tmp_path / "again")


SCALE = f"{GEOMETRY.module(3, 0, 'up')}.weight_scale"


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "other.safetensors"},
        {"file": 3},
        {"source_path": "../escape.safetensors"},
        {"source_path": "/tmp/escape.safetensors"},
        {"source_path": "escape.sh"},
        {"source_sha256": "0" * 64},
        {"source_file_bytes": 12},
        {"source_file_bytes": -1},
        {"source_file_bytes": 2**70},
        {"source_file_bytes": "many"},
        {"source_header_base64": "!!!"},
        {"source_header_base64": ""},
        {"source_header_base64": base64.b64encode(b'{"a": 1}').decode()},
        {"source_header_base64": None},
        {"scales": {}},
        {"scales": {SCALE: {}}},
        {"scales": {SCALE: {"dtype": "U8", "shape": [32, 4], "source_bytes": 128, "source_sha256": ""}}},
        {"scales": {SCALE: {"dtype": "F8_E4M3", "shape": [], "source_bytes": 128, "source_sha256": ""}}},
        {
            "scales": {
                SCALE: {"dtype": "F8_E4M3", "shape": [1 << 40, 4], "source_bytes": 128, "source_sha256": ""}
            }
        },
    ],
    ids=lambda change: str(change)[:60],
)
def test_receipts_that_do_not_fit_are_refused(made: tuple[Path, Path], tmp_path: Path, changes: dict) -> None:
    _, box = made
    edit(box / "receipts" / f"{FIRST}.json", **changes)
    with pytest.raises(IntarsiaError):
        restore_checkpoint(box, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    assert not (tmp_path / "escape.safetensors").exists()


def test_missing_receipts_and_streams(made: tuple[Path, Path], tmp_path: Path) -> None:
    _, box = made
    (box / "receipts" / f"{SECOND}.json").unlink()
    with pytest.raises(IntarsiaError, match="receipts"):
        restore_checkpoint(box, tmp_path / "again")
    for file in ("../x.safetensors", "unknown.safetensors", ""):
        with pytest.raises(IntarsiaError):
            restore_shard(box, file, tmp_path / "one.safetensors")
    receipt = json.loads((box / "receipts" / f"{FIRST}.json").read_text())
    other = f"{GEOMETRY.module(3, 0, 'up')}.weight"
    receipt["scales"][other] = {
        **receipt["scales"][SCALE],
        "dtype": "U8",
        "shape": [32, 32],
        "source_bytes": 1024,
    }
    edit(box / "receipts" / f"{FIRST}.json", scales=receipt["scales"])
    with pytest.raises(TensorMissingError):
        restore_shard(box, FIRST, tmp_path / "one.safetensors")


def test_the_serving_configuration(made: tuple[Path, Path]) -> None:
    original, box = made
    config = json.loads((original / "config.json").read_text())
    served = serving_configuration(box, config["quantization_config"])
    assert served["checkpoint_root"] == str(box.resolve())
    assert served["source_quantization_config"] == config["quantization_config"]
    edit(original / "config.json", quantization_config=served)
    assert resolve(open_checkpoint(original)).modules[GEOMETRY.module(3, 0, "up")].format == "NVFP4"
