"""Options that several commands share."""

from dataclasses import dataclass, replace
from typing import Annotated

import tyro

from intarsia.core.config import EngineSettings, GenerationSettings

CheckpointPath = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
Texts = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="TEXT")]


@dataclass(frozen=True, kw_only=True)
class ReplyOptions(EngineSettings):
    """How replies are drawn; what is not given follows the checkpoint's generation_config.json."""

    max_tokens: int = 256
    """Most tokens of a reply."""
    temperature: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """0 for the likeliest token each time; else logits are divided by it."""
    top_p: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Keep the fewest likeliest tokens whose probabilities reach this sum; 1 keeps all."""
    top_k: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Keep this many of the likeliest tokens; 0 keeps all."""
    min_p: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Keep tokens at least this fraction as likely as the likeliest; 0 keeps all."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Key of the noise; without one it follows from the prompt, so that a command repeats."""
    stop: Texts = ()
    """End the reply before this text; may be given several times."""
    ignore_eos: bool = False
    """Go on past the checkpoint's end-of-text tokens."""
    no_drafts: bool = False
    """Compute every token by a step of its own. The reply stays the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reply_settings(GenerationSettings())  # wrong values are refused before anything is loaded

    def engine_settings(self) -> EngineSettings:
        """The part that loading needs."""
        return EngineSettings(
            device=self.device,
            dtype=self.dtype,
            threads=self.threads,
            kv_cache_dtype=self.kv_cache_dtype,
            expert_scales=self.expert_scales,
            tuning=self.tuning,
            window=self.window,
            drafts=0 if self.no_drafts else self.drafts,
            tp=self.tp,
            rank=self.rank,
            master=self.master,
            master_port=self.master_port,
            ring=self.ring,
            rank_timeout=self.rank_timeout,
        )

    def reply_settings(self, defaults: GenerationSettings) -> GenerationSettings:
        """The checkpoint's settings with those that were given in their place."""
        given = {
            name: value
            for name in ("temperature", "top_p", "top_k", "min_p", "seed")
            if (value := getattr(self, name)) is not None
        }
        return replace(
            defaults, max_tokens=self.max_tokens, stop=self.stop, ignore_eos=self.ignore_eos, **given
        )
