"""Where every stored tensor goes in the weights of a network: decided from headers, before a byte is read.

Consume and refuse: what the network needs and the checkpoint lacks, and what the checkpoint holds and nothing
needs, are violations. Whole optional groups (MTP layer, vision tower) may be absent. An architecture without
data about its network keeps every module as a weight of its own.
"""

from collections.abc import Iterable, Mapping

import torch

from intarsia import formats
from intarsia.checkpoint import Checkpoint, Module, TensorEntry, resolve
from intarsia.checkpoint.checkpoint import nearest
from intarsia.checkpoint.collector import collector_paused
from intarsia.checkpoint.contracts import FREE
from intarsia.checkpoint.reader import torch_dtype
from intarsia.core.errors import Violation
from intarsia.families.glm5_next.inventory import VISION, TensorSpec, inventory
from intarsia.families.glm5_next.runtime import RuntimeModule, runtime_modules
from intarsia.families.registry import Family, family_of
from intarsia.loading.errors import LoadError
from intarsia.loading.layout import PLAIN, Arranged, Arrangement, Conversion, Piece, Slot, each_module
from intarsia.selection.resolve import Selection, Target

__all__ = ["Arranged", "Arrangement", "Piece", "Slot", "arrange"]

Kind = tuple[str, tuple[str, ...]]

_SCALARS = frozenset(["weight_scale_2", "input_scale"])


def arrange(checkpoint: Checkpoint, selection: Selection | None = None) -> Arrangement:
    """The arrangement of a checkpoint, with the modules of `selection` encoded while they are read.

    Raises ConfigError, and LoadError with everything missing, left over, contradictory, of another shape, or
    not stackable.
    """
    family = family_of(checkpoint.config)
    with collector_paused():
        work = _Arranger(checkpoint, family, selection)
        weights = tuple(arranged for module in work.runtime() if (arranged := work.weight(module)))
        unused = work.leftovers()
    if work.violations:
        raise LoadError(str(checkpoint.path), work.violations)
    return Arrangement(checkpoint, family, work.modules, weights, work.mtp, unused, selection)


class _Arranger:
    def __init__(self, checkpoint: Checkpoint, family: Family, selection: Selection | None) -> None:
        self.family = family
        self.config = family.glm5_next
        self.mtp = bool(family.draft_prefixes) and any(
            name.startswith(family.draft_prefixes) for name in checkpoint.tensors
        )
        self.specs: Mapping[str, TensorSpec] = {}
        if self.config is not None:
            self.specs = inventory(self.config, mtp=self.mtp, vision=True)
        resolution = resolve(checkpoint)
        self.modules: Mapping[str, Module] = resolution.modules
        self.targets: Mapping[str, Target] = selection.targets if selection is not None else {}
        self.left = dict(checkpoint.tensors)
        self.violations = list(resolution.violations)
        self._names: dict[tuple[str | None, tuple[str, ...]], list[str]] = {}
        self._kinds: dict[tuple[str | None, str | None, tuple[str, ...]], Kind] = {}

    def runtime(self) -> Iterable[RuntimeModule]:
        """The network's weights, or each module by itself where no network is known."""
        if self.config is not None:
            return runtime_modules(self.config, mtp=self.mtp)
        return each_module(self.modules)

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
            if self.config is None:
                continue
            if entry.dtype not in PLAIN:
                self._add("plain-dtype", entry.name, entry.dtype, "one of " + ", ".join(PLAIN))
            self._check_shape(entry.name, entry.shape, self.specs[entry.name].shape)
        if len({entry.dtype for entry in entries}) > 1:
            self._mixed(module, (entry.dtype for entry in entries))
        if self.config is not None and any(entry.dtype not in PLAIN for entry in entries):
            return None
        pieces = tuple(Piece((entry,), "weight", part=part) for part, entry in enumerate(entries))
        return Arranged(module, None, {"weight": Slot(torch_dtype(entries[0]), module.shape)}, pieces)

    def _matrix(self, module: RuntimeModule) -> Arranged | None:
        held = [found for name in module.sources if (found := self._module(name)) is not None]
        if len(held) < len(module.sources):
            return None
        for found in held:
            if self.config is not None:
                self._check_shape(found.name, found.shape, self.specs[f"{found.name}.weight"].shape)
        if any(len(found.shape or ()) < 2 for found in held):
            return None
        kinds = {self._kind(found) for found in held}
        if len(kinds) > 1:
            self._mixed(module, (kind[0] for kind in kinds))
            return None
        format_name = next(iter(kinds))[0]
        rows = (held[0].shape or (0, 0))[-2]
        row_parts = formats.get(format_name).row_parts([rows] * module.parts) if module.parts > 1 else 1
        form = self._form(held[0])
        slots = {
            suffix: _slot(module, dtype, shape, suffix, format_name)
            for suffix, (dtype, shape) in form.items()
        }
        pieces: list[Piece] = []
        conversions: list[Conversion] = []
        for index, found in enumerate(held):
            expert, part = divmod(index, module.parts)
            target = self.targets.get(found.name)
            if target is None:
                pieces += _pieces(found, self._suffixes(found), expert, part)
                continue
            conversions.append(Conversion(target, expert, part))
            if "input_scale" in form:
                pieces.append(Piece((found.tensors["input_scale"],), "input_scale", expert, part))
        return Arranged(module, format_name, slots, tuple(pieces), tuple(conversions), row_parts=row_parts)

    def _form(self, module: Module) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """dtype and shape of the tensors a module has once loaded."""
        target = self.targets.get(module.name)
        if target is not None:
            layout = formats.get(target.format).layout(module.shape or ())
            form = {suffix: (spec.dtype, spec.shape) for suffix, spec in layout.items()}
            if target.format == "NVFP4" and "input_scale" in module.tensors:
                entry = module.tensors["input_scale"]
                form["input_scale"] = torch_dtype(entry), entry.shape
            return form
        form = {}
        for suffix in self._suffixes(module):
            if module.codec is not None and suffix == "weight_scale":
                rows, columns = (module.shape or (0, 0))[-2:]
                form[suffix] = torch.float8_e4m3fn, (rows, columns // 16)
            else:
                entry = module.tensors[suffix]
                form[suffix] = torch_dtype(entry), entry.shape
        return form

    def _kind(self, module: Module) -> Kind:
        """What stacked matrices must share: the format and the names and types of their tensors."""
        target = self.targets.get(module.name)
        if target is not None:
            return target.format, tuple(sorted(f"{suffix} " for suffix in self._form(module)))
        format_name = module.format or module.tensors["weight"].dtype
        # Of thousands of experts nearly all are of one kind.
        key = format_name, module.codec, tuple(module.tensors)
        known = self._kinds.get(key)
        if known is None:
            suffixes = sorted(f"{suffix} {module.codec or ''}" for suffix in self._suffixes(module))
            known = self._kinds[key] = format_name, tuple(suffixes)
        return known

    def _suffixes(self, module: Module) -> list[str]:
        """Suffixes once loaded: the components of compressed scales become `weight_scale`."""
        key = module.codec, tuple(module.tensors)
        known = self._names.get(key)
        if known is None:
            known = [suffix for suffix in module.tensors if "." not in suffix and suffix not in FREE]
            if module.codec is not None:
                known.append("weight_scale")
            self._names[key] = known
        return known

    def _module(self, name: str) -> Module | None:
        found = self.modules.get(name)
        if found is None or "weight" not in found.tensors:
            self._missing(f"{name}.weight", "the network's inventory")
            return None
        for suffix, entry in found.tensors.items():
            # A bias is no part of any format; where the network has no place for it, it is refused.
            if suffix not in FREE:
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


def _slot(
    module: RuntimeModule, dtype: torch.dtype, shape: tuple[int, ...], suffix: str, format_name: str
) -> Slot:
    scalar = suffix in _SCALARS or (format_name == "FP8" and suffix == "weight_scale")
    experts = (module.shape[0],) if module.stack == "experts" else ()
    if module.stack == "none":
        return Slot(dtype, shape, scalar)
    if scalar:
        return Slot(dtype, (*experts, *((module.parts,) if module.parts > 1 else ())), True)
    return Slot(dtype, (*experts, module.parts * shape[0], *shape[1:]))


def _pieces(module: Module, suffixes: Iterable[str], expert: int, part: int) -> list[Piece]:
    pieces = []
    components = tuple([entry for suffix, entry in module.tensors.items() if "." in suffix])
    for suffix in suffixes:
        if module.codec is not None and suffix == "weight_scale":
            pieces.append(Piece(components, suffix, expert, part, module.codec))
        else:
            pieces.append(Piece((module.tensors[suffix],), suffix, expert, part))
    return pieces
