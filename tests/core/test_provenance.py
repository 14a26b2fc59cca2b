"""What code ran: named by the hash of its files, in a repository, a copied tree and an installed package."""

import json
import re
import shutil
import subprocess
import sys

import msgspec
import pytest

from intarsia.core import receipt as receipts
from intarsia.core.provenance import PACKAGE, code, files_sha256
from intarsia.core.receipt import SCHEMA, ReceiptError

SAY = """
import json, msgspec
from intarsia.core.provenance import code
print(json.dumps(msgspec.to_builtins(code())))
"""


def say(source):
    """What a process says that runs the package from a folder."""
    done = subprocess.run(
        [sys.executable, "-c", SAY],
        env={"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path):
    """A repository with a little of the package, whose hash does not matter."""
    package = tmp_path / "tree" / "src" / "intarsia"
    (package / "core").mkdir(parents=True)
    for name in ("__init__", "provenance"):
        (package / "core" / f"{name}.py").write_text("")
    (package / "__init__.py").write_text("")
    shutil.copy(PACKAGE / "core" / "provenance.py", package / "core")
    (package / "assets" / "demo").mkdir(parents=True)
    (package / "assets" / "demo" / "model").write_text("weights")
    return tmp_path / "tree"


def test_the_hash_covers_names_and_bytes(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    first = files_sha256(tmp_path, [tmp_path / "b", tmp_path / "a"])
    assert first == files_sha256(tmp_path, [tmp_path / "a", tmp_path / "b"])
    assert first != files_sha256(tmp_path, [tmp_path / "a"])
    (tmp_path / "b").rename(tmp_path / "c")
    assert first != files_sha256(tmp_path, [tmp_path / "a", tmp_path / "c"])


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_clean_tree_a_changed_one_and_a_copy(tree, tmp_path):
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "all")
    clean = say(tree / "src")
    assert re.fullmatch("[0-9a-f]{40}", clean["commit"])
    assert clean["changed"] is False

    (tree / "src" / "intarsia" / "more.py").write_text("x = 1")
    changed = say(tree / "src")
    assert (changed["commit"], changed["changed"]) == (clean["commit"], True)
    assert changed["sources_sha256"] != clean["sources_sha256"]

    (tree / "src" / "intarsia" / "more.py").unlink()
    copied = tmp_path / "demo" / "site-packages"  # a name that is left out inside the package
    shutil.copytree(tree / "src", copied)
    (copied / "intarsia" / "assets" / "demo" / "model").write_text("other weights")
    installed = say(copied)
    assert (installed["commit"], installed.get("changed")) == (None, None)
    assert installed["sources_sha256"] == clean["sources_sha256"]


def test_a_broken_repository_is_one_that_git_cannot_tell_of(tree):
    (tree / ".git").mkdir()
    (tree / ".git" / "HEAD").write_text("ab" * 20)
    found = say(tree / "src")
    assert (found["commit"], found.get("changed")) == ("ab" * 20, None)
    assert found["sources_sha256"]


def test_receipts_name_their_sources():
    made = receipts.make("load", "2026-01-02T03:04:05Z", {})
    document = json.loads(receipts.canonical(made))
    assert document["schema"] == SCHEMA
    assert document["code"]["sources_sha256"] == code().sources_sha256


@pytest.mark.parametrize("schema", [1, 2])
def test_a_schema_without_what_it_must_name_is_refused(tmp_path, schema):
    made = receipts.make("load", "2026-01-02T03:04:05Z", {})
    document = msgspec.to_builtins(made) | {"schema": f"intarsia.receipt/{schema}"}
    if schema == 2:
        del document["code"]["sources_sha256"]
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(ReceiptError, match="sources_sha256"):
        receipts.read(tmp_path / "a.json")
