"""Every module of a checkpoint and the format it is stored in."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from intarsia.checkpoint.checkpoint import Checkpoint
from intarsia.checkpoint.collector import collector_paused
from intarsia.checkpoint.errors import InvalidCheckpointError
from intarsia.checkpoint.experts import check_experts
from intarsia.checkpoint.module import Module
from intarsia.checkpoint.resolver import Resolver
from intarsia.core.errors import Violation


class Resolution(NamedTuple):
    """All modules, what contradicts, and what is odd but decided (`notes`)."""

    modules: Mapping[str, Module]
    violations: tuple[Violation, ...]
    notes: tuple[Violation, ...]


def modules(checkpoint: Checkpoint) -> Mapping[str, Module]:
    """Every module by name. Raises InvalidCheckpointError with all contradictions."""
    resolution = resolve(checkpoint)
    if resolution.violations:
        raise InvalidCheckpointError(str(checkpoint.path), resolution.violations)
    return resolution.modules


def resolve(checkpoint: Checkpoint) -> Resolution:
    """Decide every module and note all contradictions, without raising; once for an opened checkpoint."""
    return checkpoint.once("resolution", _resolve)


def _resolve(checkpoint: Checkpoint) -> Resolution:
    with collector_paused():
        resolver = Resolver(checkpoint)
        resolver.run()
        check_experts(resolver.modules, resolver.findings)
        return Resolution(MappingProxyType(resolver.modules), resolver.findings.all(), resolver.notes.all())
