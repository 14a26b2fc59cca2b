"""Ending a reply before a stop string, without letting any part of one slip out first."""

from collections.abc import Sequence


class StopStrings:
    """Passes text on, except for an end that may turn out to begin a stop string.

    The stop string that is complete first ends the text; of several complete at the same character the
    longest. What is passed on does not depend on how the text is divided into pushes.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take more text; return what can be shown. After a match nothing more comes out."""
        if self.matched is not None:
            return ""
        self._held += text
        match = self._first_match()
        if match is not None:
            begin, self.matched = match
            shown, self._held = self._held[:begin], ""
            return shown
        keep = self._possible_beginning()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def finish(self) -> str:
        """The text ends here: what was held back is shown, since no stop string followed."""
        shown, self._held = self._held, ""
        return shown

    def _first_match(self) -> tuple[int, str] | None:
        found = [(self._held.find(stop), stop) for stop in self._stops]
        matches = [(begin + len(stop), begin, stop) for begin, stop in found if begin >= 0]
        if not matches:
            return None
        _, begin, stop = min(matches)
        return begin, stop

    def _possible_beginning(self) -> int:
        """Length of the longest end of the held text that is the beginning of a stop string."""
        for length in range(min(len(self._held), self._longest - 1), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
