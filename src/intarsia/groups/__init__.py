"""Ranks that run one network together: exchanges, agreement, and who is to blame when one is lost."""

from intarsia.groups.errors import (
    RankLostError,
    RankMissingError,
    RanksDifferError,
    RanksDivergedError,
    RendezvousError,
)
from intarsia.groups.group import SINGLE, Group, SingleRank

__all__ = [
    "SINGLE",
    "Group",
    "RankLostError",
    "RankMissingError",
    "RanksDifferError",
    "RanksDivergedError",
    "RendezvousError",
    "SingleRank",
]
