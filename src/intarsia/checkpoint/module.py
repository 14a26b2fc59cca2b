"""One module of a checkpoint: a format, and the tensors it is stored in."""

from collections.abc import Mapping
from typing import NamedTuple

from intarsia.checkpoint.entry import TensorEntry
from intarsia.checkpoint.recipes import Recipe


class Module(NamedTuple):
    """One module. `format` is a name of `intarsia.formats`, or None for plain tensors.

    `tensors` maps suffixes to entries. `shape` is the logical shape of `weight`, None without one. `codec`
    names the compressed form of its block scales, if they are compressed.
    """

    name: str
    format: str | None
    tensors: Mapping[str, TensorEntry]
    shape: tuple[int, ...] | None
    codec: str | None = None
    recipe: Recipe | None = None

    @property
    def nbytes(self) -> int:
        """Stored bytes of all its tensors."""
        return sum(entry.end - entry.begin for entry in self.tensors.values())
