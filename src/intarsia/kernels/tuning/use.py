"""Which file of tuned configurations a process uses: the device's own, a named one, or none."""

from dataclasses import dataclass

import torch

from intarsia.kernels.tuning import cache
from intarsia.kernels.tuning.active import Table, install
from intarsia.kernels.tuning.errors import TuningError

AUTO, OFF = "auto", "off"
NONE_THERE = "no file is there"


@dataclass(frozen=True, slots=True)
class State:
    """What a setting comes to on a device: the table, or why there is none."""

    path: str
    table: Table | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.table is None:
            place = f"{self.path}: " if self.path else ""
            return f"kernels run their defaults: {place}{self.reason}"
        return f"kernels tuned {self.table.created}, {len(self.table.found)} sites: {self.path}"

    @property
    def refused(self) -> bool:
        """Whether a file is there that does not hold."""
        return self.table is None and self.reason not in ("", NONE_THERE) and bool(self.path)


def look(setting: str, device: torch.device) -> State:
    """The device's own file for AUTO, none for OFF, else the file of this name; nothing is put to use.

    Raises TuningError for a named file that cannot be used.
    """
    if setting == OFF:
        return State("", reason="turned off")
    if setting != AUTO:
        return State(setting, cache.read(setting, device))
    if device.type != "cuda":
        return State("", reason=f"the device is {device.type}, not cuda")
    where = ""
    try:
        path = cache.default_path(device)
        where = str(path)
        if not cache.there(path):
            return State(where, reason=NONE_THERE)
        return State(where, cache.read(path, device))
    except TuningError as error:
        return State(where, reason="; ".join(str(violation) for violation in error.violations))


def use(setting: str, device: torch.device) -> State:
    """The same, put to use on the device; where there is none, what was used before is not any more."""
    state = look(setting, device)
    install(device, state.table)
    return state
