"""The configurations that are in use: a table a device, entered once, and what a search tries."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch

from intarsia.kernels.tuning.candidates import Configuration, Site, configurations


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured at a site, in microseconds: the configuration to run and the default beside it.

    Times are medians of the repeats, spreads the range of those.
    """

    configuration: Configuration
    us: float
    spread_us: float
    default_us: float
    default_spread_us: float


@dataclass(frozen=True, slots=True)
class Table:
    """All that a file gives: the sites' findings, the file and when it was measured."""

    path: str
    created: str
    found: Mapping[Site, Found] = field(default_factory=dict)


_INSTALLED: dict[int | None, Table] = {}
_TRIED: ContextVar[tuple[Site, Configuration] | None] = ContextVar("configuration tried", default=None)


def tuned(
    operation: str, formats: tuple[str, ...], shape: tuple[int, ...], rows: int, device: torch.device
) -> Configuration | None:
    """The configuration that was found for a call on this device, or None: the operation's default then."""
    tried, table = _TRIED.get(), _INSTALLED.get(device.index)
    if tried is None and table is None:
        return None
    site = Site(operation, formats, shape, configurations(operation).bucket(rows))
    if tried is not None and tried[0] == site:
        return tried[1]
    one = table.found.get(site) if table is not None else None
    return one.configuration if one is not None else None


def found(site: Site, device: torch.device) -> Found | None:
    """What is in use at a site, with its times; None where nothing was measured."""
    table = installed(device)
    return table.found.get(site) if table is not None else None


def installed(device: torch.device) -> Table | None:
    """The table in use on a device."""
    return _INSTALLED.get(_index(device))


def install(device: torch.device, table: Table | None) -> None:
    """Use a table on a device from now on, or none. Steps that were captured before keep what they had."""
    if table is None:
        _INSTALLED.pop(_index(device), None)
    else:
        _INSTALLED[_index(device)] = table


@contextmanager
def trying(site: Site, configuration: Configuration) -> Iterator[None]:
    """Inside the block calls of a site run with this configuration, whatever is installed."""
    token = _TRIED.set((site, configuration))
    try:
        yield
    finally:
        _TRIED.reset(token)


def _index(device: torch.device) -> int | None:
    """The number of a device; that of the current one for a plain `cuda`."""
    index: int | None = device.index
    if device.type == "cuda" and index is None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    return index
