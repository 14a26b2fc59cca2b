"""One tool call in GLM's format, read as it is written.

    <tool_call>name
    <arg_key>key</arg_key>
    <arg_value>value</arg_value>
    </tool_call>

Line breaks between the marks are optional. A value may hold any text but its own closing mark.
"""

from intarsia.server.output.markers import CALL, CALL_END, KEY, KEY_END, VALUE, VALUE_END, earliest

_BETWEEN = (KEY, KEY_END, CALL_END, CALL)
_LOOKS_FOR = {
    "name": _BETWEEN,
    "between": _BETWEEN,
    "key": (KEY_END,),
    "before value": (VALUE,),
    "value": (VALUE_END,),
    "broken": (CALL_END,),
}


class CallScanner:
    """Takes the text after `<tool_call>` until the call is over; every character is looked at once."""

    def __init__(self) -> None:
        self.name = ""
        self.arguments: list[tuple[str, str]] = []
        self.done = False
        self._text = ""
        self._state = "name"
        self._at = 0
        self._searched = 0
        self._key = ""

    @property
    def broken(self) -> bool:
        """True when the text cannot become a call any more."""
        return self._state == "broken"

    @property
    def text(self) -> str:
        """The part of what was pushed that belongs to the call, closing mark included."""
        return self._text[: self._at] if self.done else self._text

    @property
    def rest(self) -> str:
        """What follows the call, once it is done."""
        return self._text[self._at :] if self.done else ""

    def push(self, text: str) -> None:
        """Take more text; after `done` it only adds to `rest`."""
        self._text += text
        while not self.done and self._step():
            pass

    def close(self) -> bool:
        """The text ends here without a closing mark: True if all that was there makes a whole call."""
        if self.done or self._state not in ("name", "between"):
            return False
        remainder = self._text[self._at :].strip()
        if self._state == "name":
            self.name = remainder
        elif remainder:
            return False
        self._at, self.done = len(self._text), True
        return bool(self.name)

    def _step(self) -> bool:
        """Go past the next mark; False when it is not there yet."""
        markers = _LOOKS_FOR[self._state]
        found = earliest(self._text, markers, self._searched)
        if found is None:
            longest = max(map(len, markers))
            self._searched = max(self._at, len(self._text) - longest + 1)
            return False
        place, marker = found
        before = self._text[self._at : place]
        self._at = self._searched = place + len(marker)
        self._take(before, marker)
        if marker == CALL and self.done:  # the mark that begins the next call is not part of this one
            self._at = place
        return True

    def _take(self, before: str, marker: str) -> None:
        if self._state == "value":
            self.arguments.append((self._key, before))
            self._state = "between"
        elif self._state == "key":
            self._begin_value(before.strip())
        elif self._state == "before value":
            self._state = "broken" if before.strip() else "value"
        elif self._state == "broken":
            self.done = True
        else:
            self._take_between(before.strip(), marker)

    def _take_between(self, before: str, marker: str) -> None:
        """After the name or a value: a key, the end, or a key whose opening mark is missing."""
        if self._state == "name":
            lines = before.split("\n", 1)
            self.name, before = (lines[0].strip(), lines[-1].strip()) if marker == KEY_END else (before, "")
            if marker == KEY_END and len(lines) == 1:
                before = ""
        self._state = "between"
        if marker == KEY_END:
            self._begin_value(before)
        elif before:
            self._break(marker)
        elif marker == KEY:
            self._state = "key"
        else:
            self.done = True

    def _break(self, marker: str) -> None:
        self._state = "broken"
        self.done = marker in (CALL_END, CALL)

    def _begin_value(self, key: str) -> None:
        self._key = key
        self._state = "before value" if key else "broken"
