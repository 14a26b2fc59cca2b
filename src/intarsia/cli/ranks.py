"""Commands that run on several ranks: started here, or one by one by somebody else."""

import os
import sys
from collections.abc import Sequence

from intarsia.cli.output import note
from intarsia.core.config import EngineSettings

_LINE: list[str] = []


def remember(words: Sequence[str]) -> None:
    """Keep the command line, which every rank is started with."""
    _LINE[:] = words


def rank_of(settings: EngineSettings) -> int | None:
    """This process's place among the ranks, None where nobody named it."""
    if settings.rank is None and "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["RANK"])
    return settings.rank


def start_ranks(settings: EngineSettings) -> int | None:
    """Start the ranks that a command asks for, and wait: the exit code. None when this process is to work.

    That is so for one rank, for a rank that was named, and under torchrun.
    """
    rank = rank_of(settings)
    if settings.tp == 1 or rank is not None:
        if rank:
            # the reply is rank 0's to tell
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return None
    from intarsia.groups.launch import launch, rank_command

    return launch(
        lambda rank, port: rank_command(_LINE, rank, port),
        settings.tp,
        timeout=settings.rank_timeout,
        tell=note,
    )
