"""The engine checks: replies of shared steps are those of each stream alone, on every path there is."""

from intarsia.evidence.checks.concurrent import check_lanes_concurrent
from intarsia.evidence.checks.cover import check_lanes_cover
from intarsia.evidence.checks.coverage import Cell, CheckReport, Coverage
from intarsia.evidence.checks.ranks import run_check
from intarsia.evidence.checks.shared import check_shared

CHECKS = {
    "lanes-cover": check_lanes_cover,
    "lanes-concurrent": check_lanes_concurrent,
    "shared": check_shared,
}

__all__ = [
    "CHECKS",
    "Cell",
    "CheckReport",
    "Coverage",
    "check_lanes_concurrent",
    "check_lanes_cover",
    "check_shared",
    "run_check",
]
