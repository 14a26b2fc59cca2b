"""Reading tensors, byte ranges and cuts of them, into memory the caller owns.

Reads are positional (`preadv`), so one descriptor a shard serves everything. A shard that is no longer the
file whose header was read is refused before a byte of it is used.
"""

import os
from types import TracebackType

import torch

from intarsia.checkpoint.checkpoint import Checkpoint, stamp
from intarsia.checkpoint.dtypes import SUB_BYTE, TORCH
from intarsia.checkpoint.entry import TensorEntry
from intarsia.checkpoint.errors import ChangedError, DtypeError, RangeError, ReadError, TruncatedError
from intarsia.checkpoint.paths import open_regular

MAX_OPEN_SHARDS = 64
LINE = 64  # bytes of a cache line

Destination = torch.Tensor | memoryview | bytearray


class Reader:
    """Reads from the shards of one checkpoint.

    Every tensor returned owns its memory. The internal buffer serves column cuts and is never handed out.
    """

    def __init__(self, checkpoint: Checkpoint, buffer_bytes: int) -> None:
        self._checkpoint = checkpoint
        self._buffer_bytes = max(buffer_bytes, 1 << 12)
        self._buffer: torch.Tensor | None = None
        self._open: dict[str, int] = {}

    def twin(self) -> "Reader":
        """Another reader of the same checkpoint, for another thread. Close it too."""
        return Reader(self._checkpoint, self._buffer_bytes)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all shards and let go of the buffer."""
        while self._open:
            os.close(self._open.popitem()[1])
        self._buffer = None

    def size(self, shard: str) -> int:
        """Bytes of a shard's file when the checkpoint was opened."""
        return self._checkpoint.shard(shard).size

    def read(self, name: str) -> torch.Tensor:
        """The whole tensor, in memory of its own. E8M0 comes as uint8.

        Raises TensorMissingError, DtypeError for sub-byte types, and what `read_into` raises.
        """
        return self.read_entry(self._checkpoint.entry(name))

    def read_entry(self, entry: TensorEntry) -> torch.Tensor:
        """Like `read`, for an entry at hand."""
        tensor = torch.empty(entry.shape, dtype=torch_dtype(entry))
        self.read_into(entry, tensor)
        return tensor

    def read_rows(self, entry: TensorEntry, rows: range, columns: range | None = None) -> torch.Tensor:
        """Rows `rows` of the first dimension, and with `columns` a part of the second, owning its memory.

        Rows are read as one byte range. A column cut reads whole rows through the buffer and keeps the
        columns, since columns are not contiguous in the file.
        """
        _check_cut(entry, rows, 0)
        dtype = torch_dtype(entry)
        row_bytes = entry.nbytes // entry.shape[0] if entry.shape[0] else 0
        if columns is None:
            part = torch.empty((len(rows), *entry.shape[1:]), dtype=dtype)
            self.read_into(entry, part, rows.start * row_bytes, rows.start * row_bytes + part.nbytes)
            return part
        _check_cut(entry, columns, 1)
        part = torch.empty((len(rows), len(columns), *entry.shape[2:]), dtype=dtype)
        if part.numel():
            self._read_columns(entry, part, rows, columns, row_bytes)
        return part

    def _read_columns(
        self, entry: TensorEntry, part: torch.Tensor, rows: range, columns: range, row_bytes: int
    ) -> None:
        step = max(1, self._buffer_bytes // row_bytes)
        buffer = self._scratch(min(step, len(rows)) * row_bytes)
        for first in range(rows.start, rows.stop, step):
            last = min(first + step, rows.stop)
            raw = buffer[: (last - first) * row_bytes]
            self.read_into(entry, raw, first * row_bytes, last * row_bytes)
            whole = raw.view(part.dtype).view(last - first, *entry.shape[1:])
            part[first - rows.start : last - rows.start] = whole[:, columns.start : columns.stop]

    def _scratch(self, count: int) -> torch.Tensor:
        if self._buffer is None or self._buffer.numel() < count:
            self._buffer = torch.empty(max(count, self._buffer_bytes), dtype=torch.uint8)
        return self._buffer

    def read_into(
        self, entry: TensorEntry, destination: Destination, begin: int = 0, end: int | None = None
    ) -> None:
        """Fill `destination` with bytes `begin` to `end` of the entry, as stored.

        `destination` is a contiguous CPU tensor of any type or a writable buffer, of exactly that many
        bytes. Short reads continue; an early end of the file raises TruncatedError; a shard that changed
        since the checkpoint was opened raises ChangedError.
        """
        end = entry.nbytes if end is None else end
        if not 0 <= begin <= end <= entry.nbytes:
            raise RangeError(
                entry.name, found=f"bytes {begin} to {end}", expected=f"a range within {entry.nbytes} bytes"
            )
        target = _bytes_of(destination, entry.name)
        if target.nbytes != end - begin:
            raise RangeError(
                entry.name,
                found=f"a destination of {target.nbytes} bytes",
                expected=f"{end - begin} bytes",
            )
        if target.nbytes:
            self._fill(entry.shard, entry.name, target, entry.begin + begin)

    def read_range(self, shard: str, begin: int, end: int, destination: Destination) -> None:
        """Fill `destination` with bytes `begin` to `end` of a shard's file: of several tensors at once.

        Raises what `read_into` raises.
        """
        size = self.size(shard)
        if not 0 <= begin <= end <= size:
            raise RangeError(
                shard, found=f"bytes {begin} to {end}", expected=f"a range within the file's {size} bytes"
            )
        target = _bytes_of(destination, shard)
        if target.nbytes != end - begin:
            raise RangeError(
                shard, found=f"a destination of {target.nbytes} bytes", expected=f"{end - begin} bytes"
            )
        if target.nbytes:
            self._fill(shard, f"bytes {begin} to {end}", target, begin)

    def fill_range(self, shard: str, begin: int, target: memoryview) -> None:
        """Fill flat bytes from byte `begin` of a shard's file on, which was proven to be the one whose header
        was read only when it was opened: call `require_unchanged` before the bytes are used.

        For threads: every look at a file lets go of the interpreter and waits to have it again.
        """
        self._fill(shard, f"bytes {begin} to {begin + target.nbytes}", target, begin, proven=True)

    def require_unchanged(self, shard: str) -> None:
        """Raises ChangedError unless a shard is still the file whose header was read."""
        held = self._checkpoint.shard(shard)
        try:
            same = stamp(os.stat(held.path)) == held.stamp
        except OSError:
            same = False
        if not same:
            raise _changed(shard)

    def _fill(
        self, shard: str, what: str, target: memoryview, position: int, *, proven: bool = False
    ) -> None:
        descriptor = self._open.get(shard, -1) if proven else -1
        if descriptor < 0:
            descriptor = self._descriptor(shard)
        reason = ""
        try:
            while target.nbytes:
                count = os.preadv(descriptor, [target], position)
                if count == 0:
                    break
                position += count
                target = target[count:]
        except OSError as error:  # EINTR never arrives here: preadv repeats itself
            reason = error.strerror or str(error)
        except OverflowError:
            reason = f"an offset of {position:,}"
        if reason:
            raise ReadError(f"{shard}: {what}", found=reason, expected="a readable file")
        if target.nbytes:
            raise TruncatedError(
                f"{shard}: {what}",
                found=f"the end of the file {target.nbytes:,} bytes early",
                expected="the bytes its header promises",
                action="download the shard again",
            )

    def _descriptor(self, name: str) -> int:
        """An open descriptor of a shard, proven to be the file whose header was read."""
        shard = self._checkpoint.shard(name)
        descriptor = self._open.pop(name, -1)
        if descriptor < 0:
            if len(self._open) >= MAX_OPEN_SHARDS:
                os.close(self._open.pop(next(iter(self._open))))
            descriptor = open_regular(shard.path, name)
        self._open[name] = descriptor  # the last used stands last
        if stamp(os.fstat(descriptor)) != shard.stamp:
            raise _changed(name)
        return descriptor


def _changed(shard: str) -> ChangedError:
    return ChangedError(
        shard,
        found="another file, size or time than when the checkpoint was opened",
        expected="files that stay as they are while they are read",
        action="open the checkpoint again",
    )


def staging_view(buffer: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """The part of a byte buffer into which bytes `begin` to `end` of a file are read fastest.

    Its address and the bytes' place in the file leave the same remainder by 64, because the kernel's copy is
    a third slower between places that do not. The buffer needs 63 bytes more than the range.
    """
    shift = (begin - buffer.data_ptr()) % LINE
    view = buffer[shift : shift + end - begin]
    if buffer.dtype != torch.uint8 or view.numel() != end - begin:
        raise RangeError(
            f"bytes {begin} to {end}",
            found=f"a buffer of {buffer.numel()} {buffer.dtype}",
            expected=f"{end - begin + LINE - 1} bytes, uint8",
        )
    return view


def torch_dtype(entry: TensorEntry) -> torch.dtype:
    """The torch type of an entry; raises DtypeError for types torch cannot hold."""
    dtype = TORCH.get(entry.dtype)
    if dtype is None:
        kind = "a sub-byte type" if entry.dtype in SUB_BYTE else "a type without a torch counterpart"
        raise DtypeError(
            f"{entry.shard}: {entry.name}",
            found=f"{entry.dtype}, {kind}",
            expected="one of " + ", ".join(TORCH),
            action="read its bytes with read_into",
        )
    return dtype


def _check_cut(entry: TensorEntry, cut: range, axis: int) -> None:
    size = entry.shape[axis] if len(entry.shape) > axis else -1
    if cut.step != 1 or not 0 <= cut.start <= cut.stop <= size:
        what = "columns" if axis else "rows"
        raise RangeError(
            entry.name, found=f"{what} {cut}", expected=f"a range within shape {list(entry.shape)}"
        )


def _bytes_of(destination: Destination, name: str) -> memoryview:
    if isinstance(destination, torch.Tensor):
        if destination.device.type != "cpu" or not destination.is_contiguous():
            raise RangeError(
                name,
                found=f"a destination on {destination.device} with strides {destination.stride()}",
                expected="a contiguous CPU tensor",
            )
        return destination.detach().reshape(-1).view(torch.uint8).numpy().data
    view = memoryview(destination)
    if view.readonly or not view.contiguous:
        raise RangeError(name, found="a read-only or strided buffer", expected="a writable contiguous one")
    return view.cast("B") if view.nbytes else view
