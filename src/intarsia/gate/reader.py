"""Whole tensors by plain buffered reads, from shards whose headers are read here once more."""

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PREFIX = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A stored tensor: its dtype as the file spells it, its shape, and its bytes in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class RawReader:
    """Tensors of safetensors files by name. The last file stays open."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._places: dict[str, tuple[Path, str, tuple[int, ...], int, int]] = {}
        self._taken: set[str] = set()
        for path in files:
            with path.open("rb") as file:
                (size,) = _PREFIX.unpack(file.read(_PREFIX.size))
                header = json.loads(file.read(size))
            begin = _PREFIX.size + size
            for name, entry in header.items():
                if name == "__metadata__":
                    continue
                first, last = entry["data_offsets"]
                self._places[name] = path, entry["dtype"], tuple(entry["shape"]), begin + first, begin + last

    @property
    def names(self) -> frozenset[str]:
        """All names."""
        return frozenset(self._places)

    @property
    def taken(self) -> frozenset[str]:
        """Names of all tensors that were read."""
        return frozenset(self._taken)

    def form(self, name: str) -> tuple[str, tuple[int, ...]]:
        """dtype and shape, without reading."""
        _, dtype, shape, _, _ = self._places[name]
        return dtype, shape

    def read(self, name: str) -> RawTensor:
        """One whole tensor."""
        path, dtype, shape, begin, end = self._places[name]
        self._taken.add(name)
        with path.open("rb") as file:
            file.seek(begin)
            return RawTensor(dtype, shape, file.read(end - begin))
