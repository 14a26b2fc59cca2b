"""What a comparison reads, and how. Importing this stays cheap: it knows neither torch nor a model."""

import re
from dataclasses import dataclass

from intarsia.core.config import LoadSettings, check_integer
from intarsia.core.errors import UsageError


@dataclass(frozen=True)
class QualitySettings(LoadSettings):
    """What text is read, and how."""

    tokens: str = "16x1024"
    """Windows and the tokens of each."""
    repeat_windows: int = 2
    """Windows that the base reads twice; both times must give the same bits."""
    seed: int = 0
    """Seed of the bootstrap."""

    def __post_init__(self) -> None:
        super().__post_init__()
        match = re.fullmatch(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,6})", self.tokens)
        if match is None or int(match[2]) < 2:
            expected = "windows x tokens, such as 16x1024, of 2 tokens or more"
            raise UsageError("tokens", found=f"{self.tokens!r}", expected=expected)
        check_integer("repeat_windows", self.repeat_windows, 1)
        check_integer("seed", self.seed, 0, 2**63)
