"""Which kernel runs an operation: a table of candidates, each with its reason for refusing a case.

Choosing looks at formats, types, shapes and the device, never at how many rows there are: a row's bits must
not change with them.
"""

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

import torch

from intarsia.kernels.errors import KernelError

REFERENCE = "reference"
TRITON = "triton"
GLUON = "gluon"
_PREFERENCE = (GLUON, TRITON, REFERENCE)
CAPABILITY = (9, 0)
"""The first compute capability with the bfloat16 instructions that the decoding uses."""


@dataclass(frozen=True, slots=True)
class Case:
    """What an operation is asked for. `formats` are those of its weights, none for an operation without.

    `layout` tells how a weight lies in memory where that is unlike a whole matrix by itself: a reason to
    refuse, for kernels that read whole rows.
    """

    operation: str
    formats: tuple[str, ...]
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...] = ()
    layout: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One implementation. `refuse` answers why it cannot run a case, or the empty string."""

    operation: str
    name: str
    refuse: Callable[[Case], str]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of an explanation: `refusal` is empty for a candidate that could run, `chosen` marks the
    one.
    """

    operation: str
    formats: tuple[str, ...]
    dtype: str
    candidate: str
    chosen: bool
    refusal: str


_CANDIDATES: dict[str, list[Candidate]] = {}
_FORCED: ContextVar[str | None] = ContextVar("forced kernel", default=None)
_ASKED: ContextVar[dict[Case, None] | None] = ContextVar("cases asked for", default=None)


def offer(operation: str, refuse: Callable[[Case], str], name: str = TRITON) -> None:
    """Enter a GPU kernel of an operation into the table, before the reference, which takes every case."""

    def missing(device: torch.device) -> str:
        return no_gluon(device) if name == GLUON else no_triton(device)

    on_gpu = Candidate(operation, name, lambda case: missing(case.device) or refuse(case))
    others = _CANDIDATES.get(operation, [Candidate(operation, REFERENCE, lambda case: "")])
    others = [candidate for candidate in others if candidate.name != name]
    _CANDIDATES[operation] = sorted([on_gpu, *others], key=lambda one: _PREFERENCE.index(one.name))


def choose(case: Case) -> str:
    """The name of the first candidate that takes the case, or of the forced one.

    Raises KernelError when the forced candidate refuses.
    """
    forced, kept = _FORCED.get(), _ASKED.get()
    if kept is not None:
        kept[case] = None
    for candidate in _CANDIDATES[case.operation]:
        if forced not in (None, candidate.name):
            continue
        refusal = candidate.refuse(case)
        if not refusal:
            return candidate.name
        if forced:
            raise KernelError(
                case.operation,
                found=f"the {forced} kernel forced, and refusing: {refusal}",
                action="force another, or none",
            )
    raise KernelError(
        case.operation, found=f"no kernel named {forced!r}", expected=f"one of {', '.join(_PREFERENCE)}"
    )


def explain(case: Case) -> list[Row]:
    """Every candidate of an operation, in the order of preference, with its reason where it refuses."""
    name = choose(case)
    return [
        Row(
            case.operation,
            case.formats,
            str(case.dtype).removeprefix("torch."),
            candidate.name,
            candidate.name == name,
            candidate.refuse(case),
        )
        for candidate in _CANDIDATES[case.operation]
    ]


@contextmanager
def asked() -> Iterator[dict[Case, None]]:
    """The cases that are chosen for inside the block, each once, in the order of the first time."""
    kept: dict[Case, None] = {}
    token = _ASKED.set(kept)
    try:
        yield kept
    finally:
        _ASKED.reset(token)


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Inside the block every operation runs the candidate of this name, and raises where that one refuses."""
    token = _FORCED.set(name)
    try:
        yield
    finally:
        _FORCED.reset(token)


@cache
def no_triton(device: torch.device) -> str:
    """Why Triton kernels cannot run on a device, or the empty string."""
    if device.type != "cuda":
        return f"the device is {device.type}, not cuda"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        return f"compute capability {found[0]}.{found[1]}, and {CAPABILITY[0]}.{CAPABILITY[1]} is needed"
    return ""


@cache
def no_gluon(device: torch.device) -> str:
    """Why kernels written for Hopper's registers cannot run on a device, or the empty string."""
    reason = no_triton(device)
    if reason:
        return reason
    if importlib.util.find_spec("triton.experimental.gluon") is None:
        return "this triton has no gluon"
    version = importlib.metadata.version("triton")
    if not version.startswith("3.6."):
        return f"triton {version}, whose gluon is another; 3.6 is needed"
    found = torch.cuda.get_device_capability(device)
    return "" if found[0] == 9 else f"compute capability {found[0]}.{found[1]}, and 9.x is needed"
