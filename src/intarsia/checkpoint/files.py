"""Reading whole small files of a checkpoint with a bound on their size."""

import os
from pathlib import Path

from intarsia.checkpoint.errors import ReadError
from intarsia.checkpoint.paths import open_regular


def read_small(path: Path, where: str, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes. Raises PathError or ReadError."""
    descriptor = open_regular(path, where)
    try:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise ReadError(where, found=f"{size:,} bytes", expected=f"at most {limit:,}")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(limit)
    finally:
        os.close(descriptor)
