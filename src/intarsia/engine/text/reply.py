"""A reply's text as it grows: tokens in, text that can be shown out."""

import codecs
from collections.abc import Sequence
from typing import Protocol

from intarsia.engine.text.stops import StopStrings


class Pieces(Protocol):
    """What a tokenizer offers a reply."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; none for a control token."""
        ...


class ReplyText:
    """Turns tokens into text, whole characters only, up to the first stop string.

    Tokens of a byte-level vocabulary may end inside a character; its bytes wait for the rest. The shown
    parts together are exactly the decoded reply: bytes that are no UTF-8 give U+FFFD, as they do at once.
    """

    def __init__(self, pieces: Pieces, stops: Sequence[str] = ()) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopStrings(stops)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.matched

    def push(self, token: int) -> str:
        """Take the next token; return the text that can be shown now."""
        return self._stops.push(self._utf8.decode(self._pieces.token_bytes(token)))

    def finish(self) -> str:
        """The reply ends here; return what was still waiting."""
        shown = self._stops.push(self._utf8.decode(b"", final=True))
        return shown if self.stopped_by is not None else shown + self._stops.finish()
