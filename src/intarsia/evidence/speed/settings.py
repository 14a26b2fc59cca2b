"""What a speed run measures; two runs are compared only when all of it is equal."""

from dataclasses import dataclass

from intarsia.core.config import LoadSettings, check_integer
from intarsia.core.errors import UsageError


@dataclass(frozen=True)
class SpeedSettings(LoadSettings):
    """Cells, rounds and what is run in them."""

    prompts: tuple[int, ...] = (2048, 8192, 32768)
    """Prompt lengths in tokens; those beyond the model's window are not run, and said so."""
    beyond_window: bool = False
    """Time prompts beyond the model's window as well: the work is the same, the reply would mean nothing."""
    streams: tuple[int, ...] = (1, 8)
    """Streams that write at once."""
    decode_tokens: int = 64
    """Tokens that each stream writes."""
    drafts: int = 3
    """Most tokens guessed ahead by the MTP layer in drafted cells; 0 leaves those cells out."""
    rounds: int = 5
    """Samples of every cell, the warm-up apart."""
    warm_ups: int = 1
    """Samples of every cell before the first that counts."""
    seed: int = 0
    """Seed of the bootstrap."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values, least in (("prompts", self.prompts, 2), ("streams", self.streams, 1)):
            if len(set(values)) != len(values):
                raise UsageError(name, found=f"{values}", expected="different numbers")
            for value in values:
                check_integer(name, value, least)
        check_integer("decode_tokens", self.decode_tokens, 2)
        check_integer("drafts", self.drafts, 0, 64)
        check_integer("rounds", self.rounds, 2)
        check_integer("warm_ups", self.warm_ups, 0)
        check_integer("seed", self.seed, 0, 2**63)
        if not self.prompts and not self.streams:
            raise UsageError("prompts", found="no cell at all", expected="a prompt length or a stream count")
