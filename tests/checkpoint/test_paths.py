"""Names from an index, and what they may open."""

import json
import os

import pytest

from intarsia.checkpoint import audit, locate, open_checkpoint
from intarsia.checkpoint.errors import InvalidCheckpointError, NotACheckpointError
from intarsia.checkpoint.paths import lexical_problem, shard_problem
from tests.checkpoint.build import make, named, plain, rules, shard

ENTRY = {"a.weight": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../x.safetensors", "a/../x.safetensors", "a/./x.safetensors", "/x.safetensors",
        "a//x.safetensors", "a/", "a\\x.safetensors", "C:x.safetensors", "x\0.safetensors", "x\n.safetensors",
        "a" * 300 + ".safetensors", "/".join(["d"] * 3000) + "/x.safetensors", "x.bin", "x", "x.safetensors/",
        "\x1b[31m.safetensors",
    ],
)  # fmt: skip
def test_bad_shard_names(name):
    assert shard_problem(name)


@pytest.mark.parametrize(
    "name", ["x.safetensors", "tensors/native-QB.safetensors", "a/b/c/d.safetensors", "..x.safetensors"]
)
def test_good_shard_names(name):
    assert shard_problem(name) == ""
    assert lexical_problem(name.removesuffix(".safetensors")) == ""


def indexed(folder, mapping):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))
    return folder


def test_bad_names_are_reported_by_five_and_a_count(tmp_path):
    mapping = {f"t{number}": f"../{number}.safetensors" for number in range(12)}
    report = audit(indexed(tmp_path, mapping))
    found = [item for item in report.violations if item.rule == "index-path"]
    assert len(found) == 6
    assert "7 further" in found[-1].found
    assert "t0" in found[0].where


def test_symlinks_are_followed_even_out_of_the_folder(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    shard(blobs / "0123", ENTRY, bytes(4))
    (snapshot / "tensors").mkdir(parents=True)
    (snapshot / "tensors" / "model.safetensors").symlink_to("../../../blobs/0123")
    indexed(snapshot, {"a.weight": "tensors/model.safetensors"})
    checkpoint = open_checkpoint(snapshot)
    assert checkpoint.weight_bytes == (blobs / "0123").stat().st_size
    with checkpoint.reader() as reader:
        assert reader.read("a.weight").tolist() == [0, 0]


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "dangling"])
def test_only_regular_files_are_opened(tmp_path, kind):
    path = tmp_path / "model.safetensors"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to("nowhere")
    indexed(tmp_path, {"a.weight": "model.safetensors"})
    report = audit(tmp_path)
    assert named(report, "shard-unreadable") == ["model.safetensors"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "hf_quant_config.json"])
def test_configuration_files_are_regular_files_too(tmp_path, name):
    make(tmp_path / "m", {"a": plain()})
    path = tmp_path / "m" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(InvalidCheckpointError, match="regular"):
        open_checkpoint(tmp_path / "m")


def test_a_huge_configuration_is_not_read(tmp_path):
    make(tmp_path / "m", {"a": plain()})
    with open(tmp_path / "m" / "config.json", "wb") as file:
        file.truncate(1 << 34)
    with pytest.raises(InvalidCheckpointError, match="17,179,869,184 bytes"):
        open_checkpoint(tmp_path / "m")


@pytest.mark.parametrize("kind", ["nothing", "file"])
def test_a_checkpoint_is_a_folder(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "file":
        path.write_text("x")
    with pytest.raises(NotACheckpointError, match=kind):
        open_checkpoint(path)


def test_a_folder_without_weights_is_none(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(InvalidCheckpointError, match=r"\.bin and \.pt files are never read"):
        open_checkpoint(tmp_path)


def test_demo_names_the_model_of_the_package():
    assert (locate("demo") / "config.json").is_file()
    assert rules(audit("demo")) == set()
