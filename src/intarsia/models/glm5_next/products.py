"""Which matrices the network multiplies by at once, and the sites of kernels' configurations that follow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from intarsia.core.config import ScaleForm
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.experts.candidates import EXPERTS
from intarsia.kernels.linear import plan
from intarsia.kernels.linear.candidates import LINEAR, SWIGLU
from intarsia.kernels.tuning import Site, configurations

Kind = Literal["together", "apart", "swiglu"]
Form = tuple[str, tuple[int, ...]]
"""The format of a weight in memory and its shape."""

# As `attention` and `feed_forward` call the products: endings of names, and how they are multiplied.
_GROUPS: tuple[tuple[tuple[str, ...], Kind], ...] = (
    (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "together"),
    (("self_attn.b_proj", "self_attn.f_a_proj", "self_attn.g_a_proj"), "together"),
    (("self_attn.f_b_proj", "self_attn.g_b_proj"), "apart"),
    (
        (
            "self_attn.q_a_proj",
            "self_attn.kv_a_proj_with_mqa",
            "self_attn.indexer.wk",
            "self_attn.indexer.index_kpool_compress_gate",
            "self_attn.indexer.weights_proj",
        ),
        "together",
    ),
    (("self_attn.q_b_proj", "self_attn.indexer.wq_b"), "together"),
    (("self_attn.o_proj",), "together"),
    (("mlp.gate_up",), "swiglu"),
    (("mlp.down",), "together"),
    (("mlp.shared_experts.gate_up",), "swiglu"),
    (("mlp.shared_experts.down",), "together"),
    (("eh_proj",), "together"),
    (("lm_head",), "together"),
)
_SITE_SCALES: Mapping[ScaleForm, str] = {"expanded": "expanded", "resident": "compressed"}
"""How sites name what the settings call the form of experts' block scales."""
_HALVES = 256  # rows of gate over up that the kernels take side by side: a multiple of it


@dataclass(frozen=True, slots=True)
class Product:
    """Matrices of one format that are multiplied in one call. `sizes` are their rows."""

    form: str
    sizes: tuple[int, ...]
    columns: int
    kind: Kind

    def site(self, rows: int) -> Site:
        """Where the configuration for so many rows holds."""
        total = sum(self.sizes)
        ranges = plan.ranges_of(total, self.columns)
        gated = self.kind == "swiglu" and not total % _HALVES
        operation = SWIGLU if gated else LINEAR
        shape = (total, self.columns, ranges)
        return Site(operation, (self.form,), shape, configurations(operation).bucket(rows))


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a layer: their format and their sizes."""

    form: str
    experts: int
    inner: int
    width: int
    top: int

    def site(self, rows: int, scales: ScaleForm) -> Site:
        """Where the configuration for so many rows holds."""
        shape = (self.experts, self.inner, self.width, self.top)
        return Site(EXPERTS, (self.form, _SITE_SCALES[scales]), shape, configurations(EXPERTS).bucket(rows))


def products(weights: Mapping[str, Form]) -> dict[Product, tuple[str, ...]]:
    """Every product of run-time weights by name, with the names of the weights in it; alike ones once."""
    found: dict[Product, list[str]] = {}
    for stem in dict.fromkeys(_stem(name) for name in weights):
        for endings, kind in _GROUPS:
            group = [f"{stem}{ending}" for ending in endings if f"{stem}{ending}" in weights]
            for form in dict.fromkeys(weights[name][0] for name in group):
                mine = [name for name in group if weights[name][0] == form]
                sizes = tuple(weights[name][1][0] for name in mine)
                product = Product(form, sizes, weights[mine[0]][1][1], kind)
                found.setdefault(product, []).extend(mine)
    return {product: tuple(names) for product, names in found.items()}


def routed(weights: Mapping[str, Form], config: Glm5NextConfig) -> dict[Experts, tuple[str, ...]]:
    """The kinds of routed experts among run-time weights, with their names."""
    found: dict[Experts, list[str]] = {}
    for name, (form, shape) in weights.items():
        if not name.endswith("mlp.experts.down"):
            continue
        up = name.removesuffix("down") + "gate_up"
        if weights.get(up, ("", ()))[0] == form:
            experts, width, inner = shape
            kind = Experts(form, experts, inner, width, config.num_experts_per_tok)
            found.setdefault(kind, []).extend([up, name])
    return {kind: tuple(names) for kind, names in found.items()}


def possible(sites: Iterable[Site]) -> list[Site]:
    """The sites that there are kernels with configurations for."""
    return [site for site in dict.fromkeys(sites) if not configurations(site.operation).refuse(site)]


def _stem(name: str) -> str:
    """What comes before the part of a name that a group speaks of: `layers.N.`, `mtp.` or nothing."""
    if name.startswith("layers."):
        return ".".join(name.split(".")[:2]) + "."
    return "mtp." if name.startswith("mtp.") else ""
