"""Which stored matrices each weight of the running network is made of.

Names are the checkpoint's without `model.language_model.` and `.weight`; the MTP layer is `mtp.` + the rest.
Only what is always used together is stacked: gate above up, the experts of a layer, and the three
convolutions. Attention projections stay one weight a matrix, so that each may have its own format.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.inventory import TEXT, Part, TensorSpec, inventory

Stack = Literal["none", "rows", "experts"]


@dataclass(frozen=True, slots=True)
class RuntimeModule:
    """One weight of the network.

    `sources` are checkpoint module names when `matrix` is true (the weight may be in any number format) and
    tensor names otherwise. stack "none": one source. "rows": the sources above each other. "experts": `parts`
    sources an expert above each other, expert after expert, [experts, rows, columns].
    `shape` is the logical shape of the result.
    """

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    matrix: bool
    stack: Stack = "none"
    parts: int = 1
    part: Part = "main"


def runtime_name(config: Glm5NextConfig, source: str) -> str:
    """The network's name of a text tensor or module, before stacking."""
    name = source.removeprefix(TEXT).removesuffix(".weight")
    for layer in config.mtp_layers:
        name = "mtp." + name.removeprefix(f"layers.{layer}.") if name.startswith(f"layers.{layer}.") else name
    return name


def runtime_modules(config: Glm5NextConfig, *, mtp: bool = True) -> tuple[RuntimeModule, ...]:
    """Every weight of the text network (and of the MTP layer), each source used exactly once."""
    return tuple(_modules(config, inventory(config, mtp=mtp, vision=False)))


def _modules(config: Glm5NextConfig, tensors: dict[str, TensorSpec]) -> Iterator[RuntimeModule]:
    for name, spec in tensors.items():
        stem, _, last = name.removesuffix(".weight").rpartition(".")
        if last in ("up_proj", "k_conv1d", "v_conv1d"):
            continue  # taken with the first of its stack
        if spec.role == "expert":
            if stem.endswith("experts.0"):
                yield _experts(config, stem.removesuffix(".0"), last, spec)
        elif last == "gate_proj":
            rows, columns = spec.shape
            pair = (f"{stem}.gate_proj", f"{stem}.up_proj")
            yield _stacked(config, f"{stem}.gate_up", pair, (2 * rows, columns), spec)
        elif last == "down_proj":
            yield _stacked(config, f"{stem}.down", (f"{stem}.down_proj",), spec.shape, spec)
        elif last == "q_conv1d":
            rows, _, taps = spec.shape
            sources = tuple(f"{stem}.{matrix}_conv1d.weight" for matrix in "qkv")
            yield _stacked(config, f"{stem}.conv1d", sources, (3 * rows, taps), spec)
        else:
            source = name.removesuffix(".weight") if spec.quantizable else name
            yield _stacked(config, name, (source,), spec.shape, spec)


def _stacked(
    config: Glm5NextConfig, name: str, sources: tuple[str, ...], shape: tuple[int, ...], spec: TensorSpec
) -> RuntimeModule:
    stack: Stack = "rows" if len(sources) > 1 else "none"
    return RuntimeModule(
        runtime_name(config, name), sources, shape, spec.quantizable, stack, len(sources), spec.part
    )


def _experts(config: Glm5NextConfig, container: str, last: str, spec: TensorSpec) -> RuntimeModule:
    kinds = ("gate_proj", "up_proj") if last == "gate_proj" else ("down_proj",)
    experts = range(config.n_routed_experts)
    sources = tuple(f"{container}.{expert}.{kind}" for expert in experts for kind in kinds)
    rows, columns = spec.shape
    shape = (config.n_routed_experts, len(kinds) * rows, columns)
    name = runtime_name(config, f"{container}.{'gate_up' if last == 'gate_proj' else 'down'}")
    return RuntimeModule(name, sources, shape, True, "experts", len(kinds), spec.part)
