"""Random data for a site, and its calls as the network makes them, what they read not in the L2 cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

import torch
from torch import Tensor

from intarsia.core.config import ScaleForm
from intarsia.evidence.kernels.timing import in_turn
from intarsia.evidence.synthetic.values import random_stack, random_stored
from intarsia.formats.stored import Stored
from intarsia.kernels.experts import ExpertStack, prepare, routed_experts
from intarsia.kernels.linear import linear_swiglu, linears, linears_apart
from intarsia.kernels.router import Routing
from intarsia.kernels.tuning import Site, configurations
from intarsia.kernels.tuning.search import Call, Trial
from intarsia.kernels.weights import Weight
from intarsia.models.glm5_next.products import Experts, Product

T = TypeVar("T")
LIMIT = 10.0  # of the SwiGLU; it changes no time
SETS = 4  # of routed rows


@dataclass(slots=True)
class Workshop:
    """Makes trials. Weights are made once a product and kept for its buckets alone; at most `most_sets` of
    them, of a product's weights or of routed rows, take turns.
    """

    device: torch.device
    scales: ScaleForm = "expanded"
    most_sets: int = 24
    _kept: tuple[object, object] | None = None
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.device).manual_seed(0)

    def trial(self, work: Product | Experts, site: Site) -> Trial:
        """Calls of the fewest and of the most rows of a site's bucket."""
        smallest = configurations(site.operation).smallest(site.rows)
        counts = list(dict.fromkeys([smallest, site.rows]))
        made = self._products(work, counts) if isinstance(work, Product) else self._experts(work, counts)
        return Trial(site, made)

    def _products(self, work: Product, counts: Sequence[int]) -> list[Call]:
        sets = self._keep(work, lambda: self._weights(work))
        calls: list[Call] = []
        for count in counts:
            x = self._numbers(count, work.columns)
            calls += [partial(_product, work.kind, x, weights) for weights in sets]
        return calls

    def _experts(self, work: Experts, counts: Sequence[int]) -> list[Call]:
        gate_up, down = self._keep(work, lambda: self._layer(work))
        calls: list[Call] = []
        for count in counts:
            x, plus = self._numbers(count, work.width), self._numbers(count, work.width).float()
            for routing in self._routings(work, count):
                calls.append(partial(routed_experts, x, routing, gate_up, down, LIMIT, plus))
        return calls

    def _keep(self, key: Product | Experts, make: Callable[[], T]) -> T:
        """What was made for the same work, or new; the other's memory is free by then."""
        if self._kept is None or self._kept[0] != key:
            self._kept = None
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self._kept = (key, make())
        return cast(T, self._kept[1])

    def _weights(self, work: Product) -> list[list[Weight]]:
        one = sum(work.sizes) * work.columns * (2 if work.form == "BF16" else 1)
        count = min(self.most_sets, in_turn(one) if self.device.type == "cuda" else 2)
        return [[self._weight(work.form, size, work.columns) for size in work.sizes] for _ in range(count)]

    def _weight(self, form: str, rows: int, columns: int) -> Weight:
        if form != "BF16":
            return random_stored(form, rows, columns, self.generator)
        return Stored("BF16", {"weight": self._numbers(rows, columns) * columns**-0.5}, (rows, columns))

    def _layer(self, work: Experts) -> tuple[ExpertStack, ExpertStack]:
        gate_up = random_stack(work.form, (work.experts, 2 * work.inner, work.width), 2, self.generator)
        down = random_stack(work.form, (work.experts, work.width, work.inner), 1, self.generator)
        resident = self.scales == "resident"
        return prepare(gate_up, down, torch.bfloat16, self.device, resident=resident)

    def _routings(self, work: Experts, rows: int) -> list[Routing]:
        """Experts drawn uniformly; one row never meets those of the routing before."""
        count = min(16, work.experts // work.top) if rows <= 4 else SETS if rows <= 128 else 1
        count = min(count, self.most_sets)
        once = torch.rand(work.experts, generator=self.generator, device=self.device).argsort()
        found = []
        for index in range(max(1, count)):
            drawn = torch.rand(rows, work.experts, generator=self.generator, device=self.device)
            chosen = drawn.topk(work.top).indices
            if rows == 1:
                chosen = once[index * work.top : (index + 1) * work.top].unsqueeze(0)
            weights = torch.rand(rows, work.top, generator=self.generator, device=self.device)
            found.append(Routing(chosen.int(), weights))
        return found

    def _numbers(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device, dtype=torch.bfloat16)


def _product(kind: str, x: Tensor, weights: list[Weight]) -> Tensor | list[Tensor]:
    if kind == "swiglu":
        return linear_swiglu(x, weights[0], LIMIT)
    if kind == "apart":
        return linears_apart([x] * len(weights), weights)
    return linears(x, weights)
