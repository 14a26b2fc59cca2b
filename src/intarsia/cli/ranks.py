"""Commands that run on several ranks: started here, or one by one by somebody else."""

import os
from collections.abc import Sequence

from intarsia.cli.output import note
from intarsia.core.config import EngineSettings

_LINE: list[str] = []


def remember(words: Sequence[str]) -> None:
    """Keep the command line, which every rank is started with."""
    _LINE[:] = words


def start_ranks(settings: EngineSettings) -> int | None:
    """Start the ranks that a command asks for, and wait: the exit code. None when this process is to work.

    That is so for one rank, for a rank that was named, and under torchrun.
    """
    if settings.tp == 1 or settings.rank is not None or "TORCHELASTIC_RUN_ID" in os.environ:
        return None
    from intarsia.groups.launch import launch, rank_command

    return launch(
        lambda rank, port: rank_command(_LINE, rank, port),
        settings.tp,
        timeout=settings.rank_timeout,
        tell=note,
    )
