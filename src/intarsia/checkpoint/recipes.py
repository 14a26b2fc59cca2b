"""Quantization metadata in one normal form, whichever file and dialect it came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SLAB, BLOCK = "csf", "csf_32x2_v1"
ENCODINGS = (SLAB, BLOCK)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How metadata says a module is stored.

    `algo` is normalised, `written` is the spelling in the file. `encoding` is the `weight_scale_encoding`
    of compressed scales. `source` names the file and key, for messages.
    """

    algo: str
    written: str
    group_size: int | None = None
    encoding: str | None = None
    source: str = field(default="", compare=False)
    extras: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def title(self) -> str:
        """The algorithm as a reader of the file knows it, with the scale encoding when there is one."""
        return self.algo + (f" ({self.encoding})" if self.encoding else "")


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """One entry of compressed-tensors' `config_groups`: a recipe and the targets it is for."""

    name: str
    targets: tuple[str, ...]
    recipe: Recipe | None


@dataclass(frozen=True, slots=True)
class Carrier:
    """One file's statement. None means that the file does not say; an empty collection is a statement.

    `strict_plain`: the producer lists what it left unquantized, so a plain module that is not listed is odd.
    `implied_csf`: scales are compressed without each recipe saying so.
    """

    source: str
    method: str
    algo: Recipe | None = None
    mixed: bool = False
    says_algo: bool = False
    kv_algo: str | None = None
    says_kv: bool = False
    exclude: tuple[str, ...] | None = None
    layers: Mapping[str, Recipe] | None = None
    experts: Recipe | None = None
    groups: tuple[TargetGroup, ...] = ()
    producer: tuple[str, str] = ("", "")
    strict_plain: bool = False
    implied_csf: bool = False


@dataclass(frozen=True, slots=True)
class Quantization:
    """The merged statement of all carriers.

    `views` holds one carrier, or two where the files disagree in something the tensors can decide; each
    module must then fit exactly one of them. No view at all means an unquantized checkpoint.
    """

    views: tuple[Carrier, ...] = ()
    kv_algo: str | None = None
    sources: tuple[str, ...] = ()

    @property
    def method(self) -> str | None:
        """`modelopt`, `fp8`, `compressed-tensors`, `nvfp4_csf`, `mxfp4_csf`, or None."""
        return self.views[0].method if self.views else None

    @property
    def algo(self) -> str | None:
        """The checkpoint-wide algorithm, MIXED_PRECISION, or None."""
        if not self.views:
            return None
        first = self.views[0]
        return "MIXED_PRECISION" if first.mixed else first.algo.algo if first.algo else None

    @property
    def producer(self) -> tuple[str, str]:
        """Name and version of the program that wrote the metadata; empty strings when unknown."""
        return self.views[0].producer if self.views else ("", "")

    @property
    def layers(self) -> Mapping[str, Recipe]:
        """The recipes of a MIXED_PRECISION checkpoint by the names in the file."""
        return (self.views[0].layers or {}) if self.views else {}

    @property
    def exclude(self) -> tuple[str, ...]:
        """The exclude patterns."""
        return (self.views[0].exclude or ()) if self.views else ()
