"""The CSF container: manifest, contract and shards must agree; its serving configuration is understood."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from intarsia.checkpoint import audit, open_checkpoint, resolve
from intarsia.formats import csf
from tests.checkpoint.build import compressed, encoded, flat, formats_of, make, modelopt, named, plain, rules

EXPERT = "model.language_model.layers.3.mlp.experts.0"
SCHEMA, CODEC = "lil-nvfp4-csf-checkpoint/1", "byte-window4-fixed-stream-u24-exceptions/1"


def container(folder: Path) -> Path:
    """Two shards: experts with compressed scales, and plain modules."""
    originals = {
        f"{EXPERT}.{p}_proj": encoded("NVFP4", 64, 64, n, input_scale=True)
        for n, p in enumerate(("up", "gate"))
    }
    shards = {
        "a.safetensors": {name: compressed(tensors, "nvfp4_slab") for name, tensors in originals.items()},
        "b.safetensors": {"model.language_model.embed_tokens": plain()},
    }
    (folder / "tensors").mkdir(parents=True)
    (folder / "metadata").mkdir()
    names, rows = {}, []
    for file, modules in shards.items():
        save_file(flat(modules), folder / "tensors" / file, metadata={"format": "pt", "schema": SCHEMA})
        rows.append({"file": file, "target_file_bytes": (folder / "tensors" / file).stat().st_size})
        source = originals if file == "a.safetensors" else modules
        names |= dict.fromkeys(flat(source), file)
    identity = {"schema": SCHEMA, "codec": CODEC, "family": "glm53_nvfp4"}
    (folder / "manifest.json").write_text(json.dumps(identity | {"shards": rows}))
    (folder / "build-contract.json").write_text(json.dumps(identity | {"source_names": names}))
    config = {"quantization_config": modelopt("NVFP4"), "num_hidden_layers": 4}
    (folder / "metadata" / "config.json").write_text(json.dumps(config))
    return folder


def row(file: str) -> dict:
    return {"file": file, "target_file_bytes": 1}


def edit(folder: Path, name: str, **changes) -> None:
    document = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(document | changes))


def test_a_container_is_read_like_a_checkpoint(tmp_path):
    folder = container(tmp_path / "c")
    assert audit(folder, values=True).violations == ()
    checkpoint = open_checkpoint(folder)
    module = resolve(checkpoint).modules[f"{EXPERT}.up_proj"]
    assert (module.format, module.codec, module.shape) == ("NVFP4", "nvfp4_slab", (64, 64))
    with checkpoint.reader() as reader:
        parts = {s.partition(".")[2]: reader.read_entry(e) for s, e in module.tensors.items() if "." in s}
    decoded = csf.decode(parts, 64, 4, "nvfp4_slab")
    assert torch.equal(decoded, encoded("NVFP4", 64, 64, 0)["weight_scale"].view(torch.uint8))
    assert checkpoint.weight_bytes == sum(path.stat().st_size for path in (folder / "tensors").iterdir())


@pytest.mark.parametrize(
    ("name", "changes", "rule"),
    [
        ("manifest.json", {"schema": "lil-nvfp4-lsc-checkpoint/1"}, "container-identity"),
        ("manifest.json", {"codec": "other"}, "container-identity"),
        ("manifest.json", {"family": "unheard_of"}, "container-identity"),
        ("build-contract.json", {"family": "kimi_k3"}, "container-identity"),
        ("manifest.json", {"shards": []}, "container-shard"),
        (
            "manifest.json",
            {"shards": [{"file": "../a.safetensors", "target_file_bytes": 1}]},
            "container-shard",
        ),
        (
            "manifest.json",
            {"shards": [{"file": "gone.safetensors", "target_file_bytes": 1}]},
            "missing-shard",
        ),
        ("build-contract.json", {"source_names": {}}, "container-names"),
        ("build-contract.json", {"source_names": {"x": "c.safetensors"}}, "container-names"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_documents_that_contradict_are_refused(tmp_path, name, changes, rule):
    folder = container(tmp_path / "c")
    edit(folder, name, **changes)
    assert rule in rules(audit(folder))


def test_sizes_and_streams_are_checked(tmp_path):
    folder = container(tmp_path / "c")
    rows = json.loads((folder / "manifest.json").read_text())["shards"]
    rows[1]["target_file_bytes"] += 1
    edit(folder, "manifest.json", shards=rows)
    names = json.loads((folder / "build-contract.json").read_text())["source_names"]
    edit(folder, "build-contract.json", source_names=names | {"model.ghost.weight": "a.safetensors"})
    report = audit(folder)
    assert named(report, "container-size") == ["tensors/b.safetensors"]
    assert named(report, "missing-tensor") == ["model.ghost.weight"]


def test_a_tensor_the_contract_does_not_list_is_reported(tmp_path):
    folder = container(tmp_path / "c")
    names = json.loads((folder / "build-contract.json").read_text())["source_names"]
    del names["model.language_model.embed_tokens.weight"]
    names["model.language_model.other.weight"] = "b.safetensors"
    edit(folder, "build-contract.json", source_names=names)
    report = audit(folder)
    assert named(report, "tensor-outside-index") == ["model.language_model.embed_tokens.weight"]


SERVING = {"quant_method": "nvfp4_csf", "format_version": 1, "source_quantization_config": modelopt("NVFP4")}


def test_the_serving_configuration_keeps_the_original_under_another_key(tmp_path):
    modules = {f"{EXPERT}.up_proj": compressed(encoded("NVFP4", 64, 64, input_scale=True), "nvfp4_slab")}
    folder = make(tmp_path / "m", modules, SERVING)
    assert audit(folder, values=True).clean
    assert formats_of(folder) == {f"{EXPERT}.up_proj": "NVFP4"}


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": 2},
        {"format_version": True},
        {"checkpoint_root": "relative/path"},
        {"source_quantization_config": None},
        {"source_quantization_config": SERVING},
    ],
    ids=str,
)
def test_serving_configurations_that_readers_refuse(tmp_path, change):
    report = audit(make(tmp_path / "m", {"model.norm": plain()}, SERVING | change))
    assert rules(report) == {"quantization-field"}
