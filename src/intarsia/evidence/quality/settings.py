"""What a comparison reads, and how. Importing this stays cheap: it knows neither torch nor a model."""

import re
from dataclasses import dataclass

from intarsia.core.config import CacheType, EngineSettings, LoadSettings, check_integer, part_of
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
    kv_cache_dtype: CacheType = "auto"
    """How the candidate's cached latents are stored: auto in the type of activations, bfloat16, or fp8."""
    tp: int = 1
    """Ranks the candidate is spread over; on one host they are started together."""
    base_tp: int = 1
    """Ranks the base is spread over: 1, or as many as the candidate."""
    rank: int | None = None
    """Which of the ranks this is, where each is started by itself; else they are started here."""
    master: str = EngineSettings.master
    """Address at which the ranks meet: that of rank 0."""
    master_port: int = EngineSettings.master_port
    """Port at which the ranks meet."""
    rank_timeout: float = EngineSettings.rank_timeout
    """Seconds a rank waits for another one before it counts as lost."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rank_settings()  # wrong values are refused before anything is loaded
        if self.base_tp not in (1, self.tp):
            expected = "1" if self.tp == 1 else f"1 or {self.tp}, as many as the candidate"
            raise UsageError("base_tp", found=f"{self.base_tp}", expected=expected)
        match = re.fullmatch(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,6})", self.tokens)
        if match is None or int(match[2]) < 2:
            expected = "windows x tokens, such as 16x1024, of 2 tokens or more"
            raise UsageError("tokens", found=f"{self.tokens!r}", expected=expected)
        check_integer("repeat_windows", self.repeat_windows, 1)
        check_integer("seed", self.seed, 0, 2**63)

    def rank_settings(self) -> EngineSettings:
        """What the ranks must know to meet."""
        return part_of(self, EngineSettings, drafts=0)
