"""Feed-forward blocks: one SwiGLU for all rows, or many behind a router."""

import torch
from torch import Tensor

from intarsia.formats.stored import Stored
from intarsia.kernels.aside import join
from intarsia.kernels.choice import GLUON, TRITON, Case, choose, explain
from intarsia.kernels.errors import KernelError
from intarsia.kernels.experts import launch, packed_launch, reference
from intarsia.kernels.experts.packed import ExpertStack, PackedExperts, compressed, pack, unpack
from intarsia.kernels.linear.launch import format_of
from intarsia.kernels.router import Routing

__all__ = [
    "ExpertStack",
    "PackedExperts",
    "compressed",
    "pack",
    "prepare",
    "routed_experts",
    "swiglu",
    "takes_arranged",
    "unpack",
]


def swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """silu(min(g, limit)) * clamp(u, -limit, limit) of `gate_up` [R, 2I] -> [R, I]; float32, rounded once."""
    name = choose(Case("swiglu", (), gate_up.dtype, gate_up.device, (gate_up.shape[1] // 2,)))
    return (launch.launch_swiglu if name == TRITON else reference.swiglu)(gate_up, limit)


def routed_experts(
    x: Tensor,
    routing: Routing,
    gate_up: ExpertStack,
    down: ExpertStack,
    limit: float,
    plus: Tensor | None = None,
) -> Tensor:
    """Weighted sum, float32 [R, D], of each row's experts, and `plus` float32 [R, D] where given; padding
    rows get zeros and `plus`.

    gate_up [E, 2I, D] and down [E, D, I], as stored or as `prepare` gives them. `plus` may still be on its
    way (see `aside`): it is waited for where it is read. A row's results are added in the order of its own
    choice, so its bits do not depend on other rows.
    """
    name = choose(_case(gate_up, down, x.dtype, x.device))
    if isinstance(gate_up, PackedExperts) and isinstance(down, PackedExperts):
        if name == GLUON:
            return packed_launch.launch(x, routing, gate_up, down, limit, plus)
        if name == TRITON:
            raise KernelError("experts", found="experts in tiles", action="unpack them for the triton kernel")
    join(x)
    if name != "reference":
        return launch.launch(x, routing, gate_up, down, limit, plus)  # type: ignore[arg-type]
    routed = reference.routed_experts(x, routing, gate_up, down, limit)
    return routed if plus is None else routed + plus


def takes_arranged(x: Tensor, gate_up: ExpertStack, down: ExpertStack, top: int) -> bool:
    """Whether `routed_experts` of rows like x has use for `Routing.arranged`."""
    if not (isinstance(gate_up, PackedExperts) and isinstance(down, PackedExperts)):
        return False
    if choose(_case(gate_up, down, x.dtype, x.device)) != GLUON:
        return False
    return packed_launch.takes_arranged(gate_up, down, x.shape[0], top)


def prepare(
    gate_up: ExpertStack,
    down: ExpertStack,
    dtype: torch.dtype,
    device: torch.device,
    *,
    resident: bool = False,
) -> tuple[ExpertStack, ExpertStack]:
    """The experts of a layer as the kernel of rows in `dtype` on `device` wants them: as they are, or in
    tiles and in the same memory, the arguments being spent.

    `resident`: with their block scales compressed. Raises KernelError where experts in tiles cannot run.
    """
    case = _case(gate_up, down, dtype, device)
    if not (isinstance(gate_up, Stored) and isinstance(down, Stored)) or choose(case) != GLUON:
        if resident:
            reasons = [row.refusal for row in explain(case) if row.candidate == GLUON and row.refusal]
            raise KernelError(
                "experts",
                found=f"block scales to be kept compressed, and {(reasons or ['another kernel chosen'])[0]}",
                expected="experts that run in tiles",
                action="keep the scales expanded",
            )
        return gate_up, down
    tiles = pack(gate_up, gated=True), pack(down, gated=False)
    return (compressed(tiles[0]), compressed(tiles[1])) if resident else tiles


def _case(gate_up: ExpertStack, down: ExpertStack, dtype: torch.dtype, device: torch.device) -> Case:
    names = tuple(
        stack.format if isinstance(stack, PackedExperts) else format_of(stack) for stack in (gate_up, down)
    )
    return Case("experts", names, dtype, device, (down.shape[0], down.shape[2], down.shape[1]))
