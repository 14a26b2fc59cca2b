"""Prompt states that outlive their stream, so that a prompt's known beginning is not run again."""

from intarsia.engine.kept.blocks import block_digests
from intarsia.engine.kept.plan import KeepPoint, keep_points
from intarsia.engine.kept.snapshot import Snapshot, copy_page, restore, take
from intarsia.engine.kept.store import KeptState, KeptStore, Match

__all__ = [
    "KeepPoint",
    "KeptState",
    "KeptStore",
    "Match",
    "Snapshot",
    "block_digests",
    "copy_page",
    "keep_points",
    "restore",
    "take",
]
