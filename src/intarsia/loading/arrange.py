"""Where every stored tensor goes in the network's weights: decided from headers, before a byte is read.

Consume and refuse: what the network needs and the checkpoint lacks, and what the checkpoint holds and nothing
needs, are violations. Whole optional groups (MTP layer, vision tower) may be absent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from intarsia.checkpoint import Checkpoint, Module, TensorEntry, resolve
from intarsia.checkpoint.checkpoint import nearest
from intarsia.checkpoint.reader import torch_dtype
from intarsia.core.errors import Violation
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.inventory import VISION, TensorSpec, inventory
from intarsia.families.glm5_next.runtime import RuntimeModule, runtime_modules
from intarsia.loading.errors import LoadError

PLAIN = ("BF16", "F16", "F32")
BLOCK_ROWS = 128
_SCALARS = frozenset(["weight_scale_2", "input_scale"])


@dataclass(frozen=True, slots=True)
class Piece:
    """One stored tensor (or one set of compressed scales) and its place in the stack: expert and part."""

    entries: tuple[TensorEntry, ...]
    suffix: str
    expert: int = 0
    part: int = 0
    codec: str | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of a run-time weight: its dtype and final shape; `scalar` has one number a source."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    scalar: bool = False


@dataclass(frozen=True, slots=True)
class Arranged:
    """One run-time weight: its tensors and what fills them. `format` None means a plain tensor."""

    module: RuntimeModule
    format: str | None
    slots: Mapping[str, Slot]
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(torch.Size(slot.shape).numel() * slot.dtype.itemsize for slot in self.slots.values())


@dataclass(frozen=True, slots=True)
class Arrangement:
    """All run-time weights of a checkpoint. `unused` names whole groups that are stored and not needed."""

    checkpoint: Checkpoint
    config: Glm5NextConfig
    weights: tuple[Arranged, ...]
    mtp: bool
    unused: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all weights once loaded."""
        return sum(weight.nbytes for weight in self.weights)

    @property
    def stored_bytes(self) -> int:
        """Bytes that will be read."""
        return sum(entry.nbytes for w in self.weights for piece in w.pieces for entry in piece.entries)


def arrange(checkpoint: Checkpoint) -> Arrangement:
    """The arrangement of a glm5_next checkpoint.

    Raises ConfigError, and LoadError with everything missing, left over, contradictory, of another shape, or
    not stackable.
    """
    config = Glm5NextConfig.from_checkpoint_config(checkpoint.config)
    mtp_prefixes = tuple(f"model.language_model.layers.{layer}." for layer in config.mtp_layers)
    mtp = bool(mtp_prefixes) and any(name.startswith(mtp_prefixes) for name in checkpoint.tensors)
    work = _Arranger(checkpoint, config, mtp)
    weights = tuple(
        arranged for module in runtime_modules(config, mtp=mtp) if (arranged := work.weight(module))
    )
    unused = work.leftovers()
    if work.violations:
        raise LoadError(str(checkpoint.path), work.violations)
    return Arrangement(checkpoint, config, weights, mtp, unused)


class _Arranger:
    def __init__(self, checkpoint: Checkpoint, config: Glm5NextConfig, mtp: bool) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.specs: Mapping[str, TensorSpec] = inventory(config, mtp=mtp, vision=True)
        resolution = resolve(checkpoint)
        self.modules: Mapping[str, Module] = resolution.modules
        self.left = dict(checkpoint.tensors)
        self.violations = list(resolution.violations)

    def weight(self, module: RuntimeModule) -> Arranged | None:
        """The arrangement of one weight, or None when it cannot be (violations say why)."""
        before = len(self.violations)
        result = self._matrix(module) if module.matrix else self._plain(module)
        return result if len(self.violations) == before else None

    def leftovers(self) -> tuple[str, ...]:
        """Names of whole unused groups; anything else that is left is a violation."""
        vision = {name for name in self.left if name.startswith(VISION)}
        expected = {name for name, spec in self.specs.items() if spec.part == "vision"}
        unused: tuple[str, ...] = ()
        if vision and expected:
            unused = (f"vision tower ({len(vision)} tensors)",)
            for name in sorted(expected - vision):
                self._missing(name, "the rest of the vision tower")
            vision &= expected
        else:
            vision = set()
        for name in self.left.keys() - vision:
            near = nearest(name, set(self.specs))
            self._add("unused-tensor", name, "a tensor the network has no place for", "", near)
        return unused

    def _plain(self, module: RuntimeModule) -> Arranged | None:
        entries = [entry for name in module.sources if (entry := self._take(name)) is not None]
        if len(entries) < len(module.sources):
            return None
        for entry in entries:
            if entry.dtype not in PLAIN:
                self._add("plain-dtype", entry.name, entry.dtype, "one of " + ", ".join(PLAIN))
            self._check_shape(entry.name, entry.shape, self.specs[entry.name].shape)
        if len({entry.dtype for entry in entries}) > 1:
            self._mixed(module, (entry.dtype for entry in entries))
        if any(entry.dtype not in PLAIN for entry in entries):
            return None
        pieces = tuple(Piece((entry,), "weight", part=part) for part, entry in enumerate(entries))
        return Arranged(module, None, {"weight": Slot(torch_dtype(entries[0]), module.shape)}, pieces)

    def _matrix(self, module: RuntimeModule) -> Arranged | None:
        held = [found for name in module.sources if (found := self._module(name)) is not None]
        if len(held) < len(module.sources):
            return None
        for found in held:
            self._check_shape(found.name, found.shape, self.specs[f"{found.name}.weight"].shape)
        kinds = {_kind(found) for found in held}
        if len(kinds) > 1:
            self._mixed(module, (kind[0] for kind in kinds))
            return None
        format_name = next(iter(kinds))[0]
        rows = held[0].tensors["weight"].shape[0]
        if format_name == "FP8_PB_WO" and module.parts > 1 and rows % BLOCK_ROWS:
            self._add(
                "stack-blocks", module.name, f"parts of {rows} rows", f"whole blocks of {BLOCK_ROWS} rows"
            )
        pieces = tuple(
            piece
            for index, found in enumerate(held)
            for piece in _pieces(found, index // module.parts, index % module.parts)
        )
        slots = {suffix: self._slot(module, held[0], suffix, format_name) for suffix in _suffixes(held[0])}
        return Arranged(module, format_name, slots, pieces)

    def _slot(self, module: RuntimeModule, first: Module, suffix: str, format_name: str) -> Slot:
        if first.codec is not None and suffix == "weight_scale":
            rows, columns = (first.shape or (0, 0))[-2:]
            dtype: torch.dtype = torch.float8_e4m3fn
            shape: tuple[int, ...] = (rows, columns // 16)
        else:
            entry = first.tensors[suffix]
            dtype, shape = torch_dtype(entry), entry.shape
        scalar = suffix in _SCALARS or (format_name == "FP8" and suffix == "weight_scale")
        experts = (module.shape[0],) if module.stack == "experts" else ()
        if module.stack == "none":
            return Slot(dtype, shape, scalar)
        if scalar:
            return Slot(dtype, (*experts, *((module.parts,) if module.parts > 1 else ())), True)
        return Slot(dtype, (*experts, module.parts * shape[0], *shape[1:]))

    def _module(self, name: str) -> Module | None:
        found = self.modules.get(name)
        if found is None or "weight" not in found.tensors:
            self._missing(f"{name}.weight", "the network's inventory")
            return None
        for suffix, entry in found.tensors.items():
            # A bias is no part of any format here; it stays in `left` and is refused with its name.
            if suffix != "bias":
                self.left.pop(entry.name, None)
        return found

    def _take(self, name: str) -> TensorEntry | None:
        entry = self.left.pop(name, None)
        if entry is None:
            self._missing(name, "the network's inventory")
        return entry

    def _check_shape(self, name: str, found: tuple[int, ...] | None, expected: tuple[int, ...]) -> None:
        if found != expected:
            self._add(
                "tensor-shape", name, f"shape {list(found or ())}", f"shape {list(expected)} by config.json"
            )

    def _mixed(self, module: RuntimeModule, kinds: Iterable[str]) -> None:
        found = " and ".join(sorted(set(kinds)))
        self._add(
            "mixed-stack", module.name, found, f"one form for all {len(module.sources)} stacked sources"
        )

    def _missing(self, name: str, why: str) -> None:
        self._add(
            "missing-tensor", name, "no such tensor", f"it, by {why}", nearest(name, self.left.keys() | set())
        )

    def _add(self, rule: str, where: str, found: str, expected: str, near: Iterable[str] = ()) -> None:
        action = ", ".join(near)
        self.violations.append(
            Violation(rule, where, found, expected, f"nearest: {action}" if action else "")
        )


def _kind(module: Module) -> tuple[str, tuple[str, ...]]:
    """What stacked matrices must share: the format and the names and types of their tensors."""
    format_name = module.format or module.tensors["weight"].dtype
    return format_name, tuple(sorted(f"{suffix} {module.codec or ''}" for suffix in _suffixes(module)))


def _suffixes(module: Module) -> list[str]:
    """Suffixes once loaded: the components of compressed scales become `weight_scale`."""
    plain = [suffix for suffix in module.tensors if "." not in suffix and suffix != "bias"]
    return [*plain, "weight_scale"] if module.codec is not None else plain


def _pieces(module: Module, expert: int, part: int) -> list[Piece]:
    pieces = []
    components = tuple(entry for suffix, entry in module.tensors.items() if "." in suffix)
    for suffix in _suffixes(module):
        if module.codec is not None and suffix == "weight_scale":
            pieces.append(Piece(components, suffix, expert, part, module.codec))
        else:
            pieces.append(Piece((module.tensors[suffix],), suffix, expert, part))
    return pieces
