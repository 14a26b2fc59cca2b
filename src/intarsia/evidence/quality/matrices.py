"""The matrices of a form as numbers, from stored tensors alone: read or encoded, then decoded."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from intarsia import formats
from intarsia.checkpoint import Module, Reader, TensorEntry, modules
from intarsia.evidence.forms import Form
from intarsia.formats import Stored, csf
from intarsia.planning.items import needs_largest, unit_key
from intarsia.selection.resolve import Target, resolve
from intarsia.selection.source import source_of


class Matrix(NamedTuple):
    """A matrix float32 [rows, columns], the format it was in, and its stored tensors (None: plain)."""

    values: Tensor
    format: str
    stored: Stored | None


class Matrices:
    """Reads the modules of a form one at a time; nothing is kept but a largest magnitude a fused group."""

    def __init__(self, form: Form, reader: Reader) -> None:
        self.modules: Mapping[str, Module] = modules(form.checkpoint)
        self.targets: Mapping[str, Target] = {}
        if form.manifest is not None:
            self.targets = resolve(form.manifest, source_of(form.checkpoint)).targets
        self._reader = reader
        self._units: dict[str, list[Target]] = {}
        for target in self.targets.values():
            self._units.setdefault(_key(target), []).append(target)
        self._largest: dict[str, Tensor] = {}

    def converted(self, name: str) -> bool:
        """True where the manifest says so: the values come from encoding here."""
        return name in self.targets

    def read(self, name: str) -> Matrix:
        """The module's `weight` as this form has it."""
        target = self.targets.get(name)
        if target is None:
            return self._as_stored(self.modules[name])
        kind = formats.get(target.format)
        largest = self._largest_of(target) if needs_largest(target.format) else None
        stored = kind.encode(self._source(name), amax=largest)
        return Matrix(kind.decode(stored), target.format, stored)

    def plain(self, entry: TensorEntry) -> Tensor:
        """A tensor that is no matrix in a number format."""
        return self._reader.read_entry(entry)

    def _source(self, name: str) -> Tensor:
        """What is encoded: plain weights in their own dtype, others decoded."""
        module = self.modules[name]
        if module.format is None:
            return self._reader.read_entry(module.tensors["weight"])
        return self._as_stored(module).values

    def _as_stored(self, module: Module) -> Matrix:
        if module.format is None:
            entry = module.tensors["weight"]
            return Matrix(self._reader.read_entry(entry).float(), entry.dtype, None)
        kind = formats.get(module.format)
        names = [suffix for suffix in module.tensors if "." not in suffix and suffix != "bias"]
        tensors = {suffix: self._reader.read_entry(module.tensors[suffix]) for suffix in names}
        if module.codec is not None:
            rows, columns = (module.shape or (0, 0))[-2:]
            parts = {
                suffix.partition(".")[2]: self._reader.read_entry(entry)
                for suffix, entry in module.tensors.items()
                if "." in suffix
            }
            scales = csf.decode(parts, rows, columns // 16, module.codec)
            tensors["weight_scale"] = scales.view(torch.float8_e4m3fn)
        stored = kind.stored(tensors)
        return Matrix(kind.decode(stored), module.format, stored)

    def _largest_of(self, target: Target) -> Tensor:
        key = _key(target)
        if key not in self._largest:
            each = [self._source(member.module).abs().amax() for member in self._units[key]]
            self._largest[key] = torch.stack(each).amax().float()
        return self._largest[key]


def _key(target: Target) -> str:
    return unit_key(target.module, target.format, target.group)
