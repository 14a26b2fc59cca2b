"""Documents of a text file, as token ids."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from intarsia.checkpoint.files import read_small
from intarsia.engine.text.tokenizer import Tokenizer
from intarsia.evidence.errors import TextError

END_OF_TEXT = "<|endoftext|>"
MAX_BYTES = 1 << 30
BY_MARK = "documents end with <|endoftext|>, which is their last token"
BY_BLANK_LINE = "documents are separated by blank lines, and joined by two line breaks"


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text cut into documents. `rule` says how; `sha256` is of the file's bytes."""

    name: str
    sha256: str
    rule: str
    documents: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return sum(map(len, self.documents))


def read_corpus(path: str | os.PathLike[str], tokenizer: Tokenizer) -> Corpus:
    """The documents of a UTF-8 file, none of them empty.

    Where the file has `<|endoftext|>`, documents end there: it becomes the end-of-text token, and a line
    break after it is dropped. Else blank lines separate documents. Raises TextError for a file that cannot be
    read as text or holds none.
    """
    file = Path(path)
    if not file.exists():
        raise TextError(str(file), found="no such file", expected="a text file in UTF-8")
    data = read_small(file, str(file), MAX_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        place = error.start
        text = ""
    else:
        place = -1
    if place >= 0:
        raise TextError(str(file), found=f"bytes that are not UTF-8 at offset {place}", expected="UTF-8")
    rule = BY_MARK if END_OF_TEXT in text else BY_BLANK_LINE
    documents = tuple(_encode(part, tokenizer) for part in split_documents(text))
    if not documents:
        raise TextError(str(file), found="no text", expected="at least one document")
    return Corpus(file.name, hashlib.sha256(data).hexdigest(), rule, documents)


def split_documents(text: str) -> list[str]:
    """The parts of a text, with what ends them; joined they are the text but for dropped space."""
    if END_OF_TEXT in text:
        *ended, rest = text.split(END_OF_TEXT)
        parts = [part.removeprefix("\n") + END_OF_TEXT for part in ended if part.strip()]
        return [*parts, rest.removeprefix("\n")] if rest.strip() else parts
    parts = [part.strip("\n") for part in re.split(r"\n[ \t]*\n", text) if part.strip()]
    return [part + "\n\n" for part in parts[:-1]] + parts[-1:]


def _encode(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text))
