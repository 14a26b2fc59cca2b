"""When a step may be captured, and capturing it."""

from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

import torch

from intarsia.checkpoint.collector import collector_paused
from intarsia.kernels import aside, choice
from intarsia.kernels.looks import looks

T = TypeVar("T")
Run = Callable[[], T]
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Row counts of captured steps. Matrices are multiplied with eight rows at a time, but experts, states and
attention cost what there are: of one row padded to eight, a layer's experts take a fifth longer."""


class Recorder(Protocol):
    """Turns a function into one that does the same work again, into the same outputs."""

    may_look: bool
    """Whether the host may look at values in it."""
    buckets: tuple[int, ...]
    """The row counts worth recording."""

    def __call__(self, run: Run[T]) -> Run[T]:
        """A function that repeats `run` and returns what the first call returned, filled again."""
        ...


class CudaRecorder:
    """Captures CUDA graphs that share one pool of memory: each overwrites what the others computed on the
    way, so outputs are good until any of them is replayed."""

    may_look = False
    buckets: tuple[int, ...] = BUCKETS

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, run: Run[T]) -> Run[T]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile. The collector may not: a device that captures refuses to
        # free an older engine's graphs, and the capture would be lost.
        with (
            collector_paused(),
            torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
            aside.allowed(),
        ):
            outputs = run()

        def replay() -> T:
            graph.replay()
            return outputs

        return replay


class Captures(Generic[T]):
    """Captured steps by shape. What cannot be captured runs eagerly, and `reason` says why."""

    def __init__(self, recorder: Recorder | None, reason: str = "") -> None:
        """`recorder` None: nothing is captured, because of `reason`."""
        self._recorder = recorder
        self.reason = reason
        self.cases: dict[choice.Case, None] = {}
        """What the steps asked the table of kernels for."""
        self._known: dict[Hashable, Run[T]] = {}

    @classmethod
    def on(
        cls, device: torch.device, ranks: int = 1, eager: bool = False, recorder: Recorder | None = None
    ) -> "Captures[T]":
        """Captures on a device, or none: on a CPU, where `eager` is asked for, or where exchanges between so
        many ranks need the host.

        `recorder` takes the place of the device's own.
        """
        if recorder is not None:
            return cls(recorder)
        if eager:
            return cls(None, "the settings ask for eager steps")
        if device.type != "cuda":
            return cls(None, f"the device is {device.type}, not cuda")
        if ranks > 1:
            return cls(None, f"{ranks} ranks exchange partial sums inside a step")
        return cls(CudaRecorder(device))

    @property
    def possible(self) -> bool:
        """False where every step runs eagerly."""
        return self._recorder is not None

    def bucket(self, rows: int) -> int | None:
        """Rows of the captured step that serves so many; None if none does."""
        if self._recorder is None:
            return None
        return next((bucket for bucket in self._recorder.buckets if bucket >= rows), None)

    def close(self) -> None:
        """Let go of all captured steps; those asked for later are captured again."""
        self._known.clear()

    def step(self, shape: Hashable, prepare: Callable[[], Run[T]]) -> Run[T] | None:
        """The captured step of a shape, or None where the step has to run eagerly.

        `prepare` makes the function of a shape that was not seen yet, its inputs filled with padding. It runs
        once as it is: that compiles kernels, and shows whether the host looks at values anywhere.
        """
        if self._recorder is None:
            return None
        known = self._known.get(shape)
        if known is not None:
            return known
        run = prepare()
        with looks() as seen, choice.asked() as cases:
            run()
        self.cases |= cases
        if seen and not self._recorder.may_look:
            self.reason = _reason(seen, cases)
            self._recorder = None
            return None
        made = self._known[shape] = self._recorder(run)
        return made


def _reason(seen: dict[str, None], cases: dict[choice.Case, None]) -> str:
    """Where the host looked, and which operations have no kernel for the device, with the refusals."""
    found = [f"the host looks at {what}" for what in seen]
    for case in cases:
        rows = choice.explain(case)
        if any(row.chosen and row.candidate == choice.REFERENCE for row in rows):
            refusals = "; ".join(f"{row.candidate}: {row.refusal}" for row in rows if row.refusal)
            found.append(f"{case.operation} runs the reference ({refusals or 'there is no other'})")
    return "; ".join(found)
