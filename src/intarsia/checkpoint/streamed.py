"""Writing one safetensors file whose tensors come in pieces: nothing is held, and the layout is known before.

    header, padded to a size that fits any outcome | tensors of known size, wide types first | the others

Tensors whose size only their content decides (exceptions of compressed scales) follow in the order they come.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from intarsia.checkpoint.dtypes import BITS
from intarsia.checkpoint.entry import MAX_RANK, MAX_TENSOR_NAME
from intarsia.checkpoint.errors import WriteError
from intarsia.checkpoint.header import LENGTH_BYTES, METADATA

_LARGEST = 10**15  # stands in a header for sizes that are not known yet


class Fixed(NamedTuple):
    """A tensor of known size. `dtype` is the safetensors name."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return prod(self.shape) * BITS[self.dtype] // 8


class Variable(NamedTuple):
    """A one-dimensional tensor whose length is not known yet."""

    name: str
    dtype: str


class StreamedShard:
    """One file being written. Every tensor's bytes come in order, pieces of different tensors in any order.

    Raises WriteError for names or pieces that cannot be; OSErrors are the caller's. `digests` holds the
    sha256 of each finished tensor's bytes.
    """

    def __init__(
        self,
        path: Path,
        fixed: Sequence[Fixed],
        variable: Sequence[Variable] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._metadata = dict(metadata or {"format": "pt"})
        self._fixed = {item.name: item for item in fixed}
        self._variable = {item.name: item for item in variable}
        for name in (*self._fixed, *self._variable):
            if not name or name == METADATA or len(name) > MAX_TENSOR_NAME or not name.isprintable():
                raise WriteError(f"{name[:200]!r}", found="a name that no reader accepts", expected="a name")
        if len(self._fixed) + len(self._variable) != len(fixed) + len(variable):
            raise WriteError(str(path), found="a tensor twice", expected="each tensor once")
        self._entries: dict[str, tuple[str, list[int], int, int]] = {}
        position = 0
        for item in sorted(fixed, key=lambda item: -BITS[item.dtype]):
            if len(item.shape) > MAX_RANK:
                raise WriteError(item.name, found=f"rank {len(item.shape)}", expected=f"at most {MAX_RANK}")
            self._entries[item.name] = (item.dtype, list(item.shape), position, position + item.nbytes)
            position += item.nbytes
        self._end = position
        self._room = len(self._header(worst=True))
        self._done: dict[str, int] = dict.fromkeys(self._fixed, 0)
        self._hashes = {name: hashlib.sha256() for name in self._fixed}
        self.digests: dict[str, str] = {}
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115  (closed by finish or close)
        try:
            reserve(self._file.fileno(), LENGTH_BYTES + self._room + position)
        except OSError:
            self.close()
            raise

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every tensor whose size is known."""
        return {name: end - begin for name, (_, _, begin, end) in self._entries.items()}

    def is_variable(self, name: str) -> bool:
        """True for a tensor of variable size that has not come yet."""
        return name in self._variable

    def write(self, name: str, begin: int, data: memoryview) -> None:
        """Bytes of a fixed tensor from `begin` on; each tensor's pieces come in order, without a gap."""
        _, _, first, last = self._entries[name]
        if self._done[name] != begin or first + begin + data.nbytes > last:
            raise WriteError(
                name,
                found=f"bytes {begin} to {begin + data.nbytes} after {self._done[name]}",
                expected=f"the next of {last - first}",
            )
        self._write_at(LENGTH_BYTES + self._room + first + begin, data)
        self._hashes[name].update(data)
        self._done[name] += data.nbytes
        if first + self._done[name] == last:
            self.digests[name] = self._hashes.pop(name).hexdigest()

    def append(self, name: str, data: memoryview) -> None:
        """The whole of a tensor of variable size."""
        item = self._variable.pop(name)
        size = BITS[item.dtype] // 8
        self._write_at(LENGTH_BYTES + self._room + self._end, data)
        self._entries[name] = (item.dtype, [data.nbytes // size], self._end, self._end + data.nbytes)
        self._end += data.nbytes
        self.digests[name] = hashlib.sha256(data).hexdigest()

    def finish(self) -> int:
        """Writes the header, flushes everything to the disk and closes; returns the file's size."""
        for name in self._fixed:
            if not self._entries[name][3] - self._entries[name][2]:
                self.digests.setdefault(name, hashlib.sha256().hexdigest())
        missing = [name for name in self._fixed if name not in self.digests] + list(self._variable)
        if missing:
            raise WriteError(missing[0], found="an incomplete tensor", expected="all of its bytes")
        text = self._header(worst=False)
        self._write_at(0, memoryview(self._room.to_bytes(LENGTH_BYTES, "little") + text.ljust(self._room)))
        os.fsync(self._file.fileno())
        self.close()
        return LENGTH_BYTES + self._room + self._end

    def close(self) -> None:
        """Closes the file, finished or not."""
        self._file.close()

    def _write_at(self, position: int, data: memoryview) -> None:
        data = data.cast("B") if data.nbytes else data
        while data.nbytes:
            count = os.pwrite(self._file.fileno(), data, position)
            position += count
            data = data[count:]

    def _header(self, *, worst: bool) -> bytes:
        header: dict[str, Any] = {METADATA: self._metadata} if self._metadata else {}
        for name, (dtype, shape, begin, end) in self._entries.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        if worst:
            for name, item in self._variable.items():
                offsets = [_LARGEST, _LARGEST]
                header[name] = {"dtype": item.dtype, "shape": [_LARGEST], "data_offsets": offsets}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        return text + b" " * (-len(text) % 8)


def reserve(descriptor: int, size: int) -> None:
    """Make a file that long and its room on the disk sure: a full disk shows before the work is done.

    Raises OSError when there is no room.
    """
    if size:
        os.posix_fallocate(descriptor, 0, size)


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in C order, on the host."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    data: memoryview = flat.view(torch.uint8).numpy().data
    return data
