"""Reading a stored matrix as numbers, some rows at a time, whatever format it is stored in."""

import torch

from intarsia import formats
from intarsia.checkpoint import Module
from intarsia.checkpoint.reader import torch_dtype
from intarsia.formats import csf
from intarsia.loading.staging import Staging

SIDE = 128


class MatrixSource:
    """One module of a checkpoint. Plain matrices come in their own dtype, others decoded to float32.

    Scales that belong to no single row are read once and kept; compressed scales are expanded once.
    """

    def __init__(self, module: Module, staging: Staging) -> None:
        self.name = module.name
        self.module = module
        self.rows, self.columns = (module.shape or (0, 0))[-2:]
        self._staging = staging
        self._kept: dict[str, torch.Tensor] = {}

    @property
    def whole(self) -> range:
        """All rows."""
        return range(self.rows)

    def read(self, rows: range) -> torch.Tensor:
        """Rows [n, columns] in memory of their own. Row blocks of the stored format must not be split."""
        module = self.module
        if module.format is None:
            entry = module.tensors["weight"]
            return self._staging.rows(entry, rows.start, len(rows), torch_dtype(entry))
        kind = formats.get(module.format)
        suffixes = [suffix for suffix in module.tensors if "." not in suffix and suffix != "bias"]
        tensors = {suffix: self._part(suffix, rows) for suffix in suffixes}
        if module.codec is not None:
            tensors["weight_scale"] = self._expanded()[rows.start : rows.stop]
        return kind.decode(kind.stored(tensors))

    def _part(self, suffix: str, rows: range) -> torch.Tensor:
        entry = self.module.tensors[suffix]
        dtype = torch_dtype(entry)
        if entry.shape and entry.shape[0] == self.rows:
            return self._staging.rows(entry, rows.start, len(rows), dtype)
        if self.module.format == "FP8_PB_WO" and suffix != "weight":
            first, last = rows.start // SIDE, -(-rows.stop // SIDE)
            return self._staging.rows(entry, first, last - first, dtype)
        if suffix not in self._kept:
            whole = torch.empty(entry.shape, dtype=dtype, device=self._staging.device)
            self._staging.fill(entry, whole)
            self._kept[suffix] = whole
        return self._kept[suffix]

    def _expanded(self) -> torch.Tensor:
        if "expanded" not in self._kept:
            parts = {}
            for suffix, entry in self.module.tensors.items():
                if "." in suffix:
                    part = torch.empty(entry.shape, dtype=torch_dtype(entry), device=self._staging.device)
                    self._staging.fill(entry, part)
                    parts[suffix.partition(".")[2]] = part
            scales = csf.decode(parts, self.rows, self.columns // 16, self.module.codec or "")
            self._kept["expanded"] = scales.view(torch.float8_e4m3fn)
        return self._kept["expanded"]
