"""What is worked out of an opened checkpoint once."""

import dataclasses

from intarsia.checkpoint import open_checkpoint, resolve
from intarsia.checkpoint.resolution import Resolver


def test_modules_are_decided_once_for_an_opened_checkpoint(monkeypatch):
    runs = []
    original = Resolver.run
    monkeypatch.setattr(Resolver, "run", lambda self: (runs.append(1), original(self)))
    checkpoint = open_checkpoint("demo")
    first = resolve(checkpoint)
    assert resolve(checkpoint) is first
    assert len(runs) == 1
    changed = dataclasses.replace(checkpoint, tensors=dict(list(checkpoint.tensors.items())[:5]))
    assert len(resolve(changed).modules) < len(first.modules), "another checkpoint has answers of its own"
    assert len(resolve(open_checkpoint("demo")).modules) == len(first.modules)
    assert len(runs) == 3
