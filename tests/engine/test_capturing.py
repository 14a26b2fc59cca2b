"""Capturing: what it collects, lets go of and looks at."""

import gc
import weakref
from typing import ClassVar

import pytest
import torch

from intarsia.engine.graphs.capture import Captures, CudaRecorder
from tests.engine.recorders import OverwritingRecorder


class Recording:
    """Stands where `torch.cuda.graph` stands: notes whether the collector could run, as a capture ends."""

    seen: ClassVar[list[bool]] = []

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.seen.append(gc.isenabled())


class Graph:
    """Stands for a captured graph."""

    def replay(self):
        pass


def test_nothing_is_collected_while_a_step_is_captured(monkeypatch):
    for name, stand_in in (("graph", Recording), ("CUDAGraph", Graph)):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    recorder = object.__new__(CudaRecorder)
    recorder._pool = recorder._stream = None
    inside = []
    replay = recorder(lambda: inside.append(gc.isenabled()))
    assert inside == Recording.seen == [False]
    assert gc.isenabled()
    replay()
    with pytest.raises(ZeroDivisionError):
        recorder(lambda: 1 / 0)
    assert gc.isenabled()


def test_closing_lets_go_of_what_was_captured():
    recorder = OverwritingRecorder()
    captures = Captures(recorder)
    captures.step("shape", lambda: lambda: torch.zeros(1))
    held = weakref.ref(captures.step("shape", None))
    captures.close()
    gc.collect()
    assert held() is None
