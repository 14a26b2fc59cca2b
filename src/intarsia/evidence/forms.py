"""A form of a model: a checkpoint as stored, or as a manifest converts it while it is loaded."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from intarsia.checkpoint import Checkpoint, open_checkpoint
from intarsia.checkpoint.files import read_small
from intarsia.core.config import CacheType, DataType
from intarsia.core.errors import Violation
from intarsia.core.json import parse_object
from intarsia.core.progress import SILENT, Progress
from intarsia.engine.text.tokenizer import FILE_NAME as TOKENIZER_NAME
from intarsia.engine.text.tokenizer import MAX_BYTES as MAX_TOKENIZER_BYTES
from intarsia.engine.text.tokenizer import Tokenizer
from intarsia.evidence.errors import UnequalSourcesError
from intarsia.groups.group import SINGLE, Group
from intarsia.loading.arrange import arrange
from intarsia.loading.weights import load_weights, prepared
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.selection.manifest import FILE_NAME as MANIFEST_NAME
from intarsia.selection.manifest import Manifest, manifest_hash, read_manifest
from intarsia.selection.recipes import RECIPES, apply_recipe
from intarsia.selection.source import source_of


@dataclass(frozen=True)
class Form:
    """What is measured. `label` names it for people, `manifest` is None for weights as stored."""

    checkpoint: Checkpoint
    manifest: Manifest | None
    label: str
    latents: CacheType = "auto"
    """How its caches store latents."""

    def load(
        self,
        device: str | torch.device = "cpu",
        dtype: DataType = "float32",
        *,
        group: Group = SINGLE,
        progress: Progress = SILENT,
    ) -> Glm5NextModel:
        """The network with this form's weights, or this rank's share of them."""
        arranged = prepared(self.checkpoint, self.manifest)
        weights = load_weights(
            arranged,
            device=device,
            rank=group.rank,
            ranks=group.ranks,
            largest=group.largest if group.ranks > 1 else None,
            progress=progress,
        )
        return Glm5NextModel(
            arranged.config,
            weights,
            dtype=getattr(torch, dtype),
            device=device,
            group=group,
            latents=self.latents,
        )

    def with_latents(self, latents: CacheType) -> "Form":
        """The same form with its latents cached otherwise."""
        if latents == self.latents:
            return self
        return replace(self, latents=latents, label=f"{self.label}, latents in {latents}")

    @property
    def manifest_sha256(self) -> str | None:
        """Identity of the manifest."""
        return manifest_hash(self.manifest) if self.manifest is not None else None


def open_form(path: str | os.PathLike[str], manifest: str | Manifest | None = None) -> Form:
    """The form of a checkpoint (or the word `demo`), as stored or by a manifest.

    `manifest` is a built-in recipe's name, a manifest file or its folder. Raises the errors of opening
    either.
    """
    checkpoint = open_checkpoint(path)
    name = os.fspath(path) if os.fspath(path) == "demo" else checkpoint.path.name
    if manifest is None:
        return Form(checkpoint, None, f"{name} as stored")
    if isinstance(manifest, str):
        if manifest in RECIPES or not os.path.exists(manifest):
            return Form(checkpoint, apply_recipe(manifest, source_of(checkpoint)), f"{name} by {manifest}")
        chosen = read_manifest(manifest)
    else:
        chosen = manifest
    return Form(checkpoint, chosen, f"{name} by {chosen.recipe or 'a manifest'}")


def is_manifest(path: str | os.PathLike[str]) -> bool:
    """True for a manifest file or a folder with one, and without a checkpoint's configuration."""
    given = Path(path)
    if given.is_dir():
        return (given / MANIFEST_NAME).exists() and not (given / "config.json").exists()
    return given.is_file() and given.suffix == ".json"


def tokenizer_of(form: Form) -> Tokenizer:
    """The checkpoint's tokenizer."""
    return Tokenizer.open(form.checkpoint.path)


def tokenizer_sha256(form: Form) -> str:
    """sha256 of tokenizer.json."""
    return hashlib.sha256(_tokenizer_bytes(form)).hexdigest()


def require_equal_sources(base: Form, candidate: Form) -> None:
    """Raise UnequalSourcesError unless a token id means the same to both."""
    if base.checkpoint.path == candidate.checkpoint.path:
        return
    found: list[Violation] = []
    sizes = [arrange(form.checkpoint).config.vocab_size for form in (base, candidate)]
    if sizes[0] != sizes[1]:
        found.append(
            Violation("vocabulary", "config.json", f"{sizes[1]:,} tokens", f"{sizes[0]:,} as in the base")
        )
    ours, theirs = (
        parse_object(_tokenizer_bytes(form), TOKENIZER_NAME, max_bytes=MAX_TOKENIZER_BYTES)
        for form in (base, candidate)
    )
    parts = _differing(ours, theirs)
    if parts:
        action = "compare checkpoints of one model"
        found.append(
            Violation(
                "tokenizer", TOKENIZER_NAME, f"other {', '.join(parts)}", "the base's tokenizer", action
            )
        )
    if found:
        raise UnequalSourcesError(found)


def _tokenizer_bytes(form: Form) -> bytes:
    return read_small(form.checkpoint.path / TOKENIZER_NAME, TOKENIZER_NAME, MAX_TOKENIZER_BYTES)


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Top-level parts that change ids; truncation and padding are never used."""
    names = (ours.keys() | theirs.keys()) - {"truncation", "padding", "version"}
    return sorted(name for name in names if ours.get(name) != theirs.get(name))
