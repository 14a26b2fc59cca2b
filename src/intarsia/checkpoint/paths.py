"""File names from a checkpoint, checked before anything is opened.

An index is untrusted: `..`, absolute names and named pipes in it have been real vulnerabilities of other
loaders. The name is checked lexically, because snapshots of the Hugging Face cache are symlinks that leave
the folder on purpose; what is opened in the end must be a regular file.
"""

import os
import stat
from pathlib import Path

from intarsia.checkpoint.errors import PathError, ReadError

MAX_NAME_BYTES = 4096
DEMO = Path(__file__).resolve().parent.parent / "assets" / "demo"


def locate(path: str | os.PathLike[str]) -> Path:
    """The folder a checkpoint argument means: `demo` is the model that ships in the package."""
    return DEMO if os.fspath(path) == "demo" else Path(path)


def lexical_problem(name: str) -> str:
    """Why `name` cannot be a file inside a checkpoint folder, or an empty string."""
    if not name:
        return "an empty name"
    if len(name.encode(errors="surrogatepass")) > MAX_NAME_BYTES:
        return "a name of more than 4,096 bytes"
    if not name.isprintable():
        return "a name with control characters"
    if "\\" in name:
        return "a backslash"
    if name.startswith("/"):
        return "an absolute path"
    if name[1:2] == ":":
        return "a drive letter"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "an empty, '.' or '..' segment"
    if any(len(part.encode(errors="surrogatepass")) > 255 for part in parts):
        return "a segment of more than 255 bytes"
    return ""


def shard_problem(name: str) -> str:
    """Like `lexical_problem`, for names that must be safetensors files."""
    if problem := lexical_problem(name):
        return problem
    return "" if name.endswith(".safetensors") else "a name that does not end in .safetensors"


def open_regular(path: Path, where: str) -> int:
    """A read-only descriptor of a regular file, following symlinks.

    The type is checked before opening, since opening a device or a pipe can have effects or wait, and
    again afterwards, since the name may have been replaced in between.
    """
    problem, reason = "", ""
    descriptor = -1
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                problem = "something that is not a regular file"
        else:
            problem = "something that is not a regular file"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    if reason:
        raise ReadError(
            where, found=reason, expected="a readable file", action="check the folder is complete"
        )
    if problem:
        raise PathError(where, found=problem, expected="a regular file or a link to one")
    return descriptor
