"""Ways to make the network wrong on purpose.

A sabotage changes a `Bench` before its network is built: a setting, weights, or a function that a module
calls. One that names a weight or function which does not exist fails, rather than change nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.models.glm5_next.model import Glm5NextModel

MODEL = "intarsia.models.glm5_next.model"
ATTENTION = "intarsia.models.glm5_next.attention"
CHOOSING = "intarsia.kernels.indexer.choosing"
ENTRY = "intarsia.kernels.mla.entry"
KDA_STEP = "intarsia.kernels.kda.step"
FEED_FORWARD = "intarsia.models.glm5_next.feed_forward"
LINEAR_SWIGLU = "intarsia.kernels.linear.swiglu"
EXPERTS = "intarsia.kernels.experts.reference"
HYPER = "intarsia.kernels.hyper_connection"
HYPER_SITE = "intarsia.kernels.hyper_connection.sites"


@dataclass
class Bench:
    """What a network is about to be built from."""

    config: Glm5NextConfig
    weights: dict[str, Tensor]
    patch: pytest.MonkeyPatch
    names: dict[int, str] = field(default_factory=dict)

    def logits(self, tokens: list[int]) -> Tensor:
        self.names |= {id(weight): name for name, weight in self.weights.items()}
        return Glm5NextModel(self.config, self.weights, dtype=torch.float32, device="cpu").logits(tokens)


Sabotage = Callable[[Bench], None]


def setting(**changes: Any) -> Sabotage:
    """Other values in the configuration."""

    def apply(bench: Bench) -> None:
        changed = replace(bench.config, **changes)
        assert changed != bench.config
        bench.config = changed

    return apply


def weights(suffix: str, change: Callable[[Tensor], Tensor]) -> Sabotage:
    """Every weight whose name ends in `suffix`, changed."""

    def apply(bench: Bench) -> None:
        hit = [name for name in bench.weights if _is_at(name, suffix) and not name.startswith("mtp.")]
        assert hit
        for name in hit:
            bench.weights[name] = change(bench.weights[name])

    return apply


def constant(path: str, value: float) -> Sabotage:
    """Another value of a module's constant."""
    return lambda bench: bench.patch.setattr(path, value)


def swap(path: str, change: Callable[[Any], Any]) -> Sabotage:
    """`change(original)` in place of the function at `path`, in the module that calls it."""
    module, _, name = path.rpartition(".")
    return lambda bench: bench.patch.setattr(path, change(getattr(import_module(module), name)))


def norm_at(suffix: str, change: Callable[[Any], Any]) -> Sabotage:
    """`change(rms_norm)` where the norm's weight has a name that ends in `suffix`, rms_norm elsewhere."""

    def apply(bench: Bench) -> None:
        for module in (MODEL, ENTRY, HYPER_SITE):
            original = import_module(module).rms_norm
            changed = change(original)

            def choose(x, weight, eps, original=original, changed=changed):
                at = _is_at(bench.names[id(weight)], suffix)
                return (changed if at else original)(x, weight, eps)

            bench.patch.setattr(f"{module}.rms_norm", choose)

    return apply


def both(*sabotages: Sabotage) -> Sabotage:
    """Several sabotages as one."""

    def apply(bench: Bench) -> None:
        for sabotage in sabotages:
            sabotage(bench)

    return apply


def _is_at(name: str, suffix: str) -> bool:
    return f".{name}".endswith(f".{suffix}")


def eps(value: float) -> Callable[[Any], Any]:
    """A norm with another epsilon, whatever it is called with."""
    return lambda norm: lambda x, weight, _: norm(x, weight, value)
