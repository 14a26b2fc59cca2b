"""The checkpoint's tokenizer: text to token ids, token ids to bytes."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from intarsia.checkpoint.files import read_small
from intarsia.core.errors import UsageError
from intarsia.core.json import parse_object
from intarsia.engine.text.errors import TokenizerError
from intarsia.engine.text.reply import ReplyText

FILE_NAME = "tokenizer.json"
MAX_BYTES = 64 << 20

# Control tokens are left out of a reply's text; these mark up its parts and are kept, whether or not a
# checkpoint lists them as special (GLM-4.5 does not, other conversions do).
REPLY_MARKUP = frozenset(
    opening + name + ">" for name in ("think", "tool_call", "arg_key", "arg_value") for opening in ("<", "</")
)


def _byte_of_characters() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes with.

    Printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 onwards in order (the
    table of GPT-2, which every byte-level BPE uses).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_of_characters()


class Tokenizer:
    """A byte-level BPE tokenizer in Hugging Face's `tokenizer.json`.

    Other decoders are refused: the bytes of a token would then depend on its neighbours, and streaming could
    not promise the text that decoding everything at once gives.
    """

    def __init__(self, data: bytes, where: str = FILE_NAME) -> None:
        """Read the file's content. Raises `TokenizerError` or `JsonError`."""
        document = parse_object(data, where, max_bytes=MAX_BYTES)
        _check_decoder(document, where)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(data.decode())
        except BaseException as error:  # the library raises bare Exception, and its panics are BaseException
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            problem = f"{error}"[:200]
        else:
            problem = ""
        if problem:
            raise TokenizerError(where, found=problem, expected="a tokenizer the tokenizers library reads")
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._added = {
            token: added.content for token, added in self._tokenizer.get_added_tokens_decoder().items()
        }
        self._hidden = frozenset(
            token
            for token, added in self._tokenizer.get_added_tokens_decoder().items()
            if added.special and added.content not in REPLY_MARKUP
        )

    @classmethod
    def open(cls, folder: Path) -> "Tokenizer":
        """Read `tokenizer.json` of a checkpoint folder, at most 64 MiB of it."""
        if not (folder / FILE_NAME).exists():
            raise TokenizerError(
                str(folder / FILE_NAME),
                found="no such file",
                action="add the tokenizer of the original model",
            )
        return cls(read_small(folder / FILE_NAME, FILE_NAME, MAX_BYTES))

    @cached_property
    def size(self) -> int:
        """One more than the largest token id."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def _token_bytes(self) -> dict[int, bytes]:
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        return {
            token: b"" if token in self._hidden else _written_bytes(self._added.get(token, written))
            for written, token in vocabulary.items()
        }

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; control tokens written out in it become those tokens.

        Raises `UsageError` for text that is no Unicode (a lone surrogate).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            character = f"a lone surrogate at character {error.start}"
            raise UsageError("text", found=character, expected="Unicode text") from None
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, control tokens left out."""
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; none for a control token and for an id without a token."""
        return self._token_bytes.get(token, b"")

    def token(self, content: str) -> int | None:
        """The id of a token by its content, such as `</think>`."""
        found: int | None = self._tokenizer.token_to_id(content)
        return found

    def reply(self, stops: Sequence[str] = ()) -> ReplyText:
        """A decoder for one reply."""
        return ReplyText(self, stops)


def _written_bytes(written: str) -> bytes:
    """The bytes of a vocabulary entry; an entry with a character outside the table is text as it stands."""
    found = [_BYTES.get(character) for character in written]
    known = [byte for byte in found if byte is not None]
    return bytes(known) if len(known) == len(found) else written.encode()


def _check_decoder(document: dict[str, Any], where: str) -> None:
    decoder = document.get("decoder")
    kind = decoder.get("type") if isinstance(decoder, dict) else decoder
    if kind != "ByteLevel":
        raise TokenizerError(where, found=f"decoder {kind!r}", expected="the decoder ByteLevel")
