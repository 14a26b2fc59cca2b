"""What a step must move and compute at least, and how fast this device moves and computes."""

import statistics
from collections.abc import Callable

import torch

from intarsia.checkpoint.collector import collector_paused
from intarsia.evidence.speed.floor import step_bytes, weights_of
from intarsia.kernels.experts import ExpertStack
from intarsia.models.glm5_next.model import Glm5NextModel

STREAMED_BYTES = 4 << 30
MATRIX = 8192
REPEATS = 10
EMPTY_KERNELS = 1000


def decode_bytes(
    model: Glm5NextModel, streams: int, context: int, rows: int = 1, *, experts: float | None = None
) -> int:
    """Bytes that a step of `rows` rows of each of `streams` streams moves.

    Weights once, of the routed experts so many a layer (None: those that are met on average if routing is
    even); delta-rule state read once and written for every row; the selected latents and all pooled keys.
    """
    config = model.config
    heads, width = model.linear_heads, config.linear_head_dim
    states = len(config.kda_layers) * heads * width * width * 4
    element = model.dtype.itemsize
    ring = len(config.kda_layers) * 3 * heads * width * element * config.linear_conv_kernel_dim
    tokens = min(context, config.index_topk + config.index_kpool)
    latents = len(config.mla_layers) * tokens * config.kv_lora_rank * element
    pooled = len(config.mla_layers) * (context // config.index_kpool) * config.index_head_dim * element
    stream = states * (1 + rows) + ring + rows * latents + pooled
    return _weights_of_step(model, streams * rows, experts) + streams * stream


def network_bytes(model: Glm5NextModel) -> int:
    """Bytes of all weights."""
    held = model.weights
    parts = (held.embedding, *held.layers, held.norm, held.head, held.mtp)
    return sum(weight.nbytes for part in parts for weight in weights_of(part))


def is_routed(weight: ExpertStack) -> bool:
    """True for a stack of routed experts, of which a row meets a few."""
    return not isinstance(weight, torch.Tensor) and len(weight.shape) == 3


def _weights_of_step(model: Glm5NextModel, rows: int, experts: float | None) -> int:
    config = model.config
    even = config.n_routed_experts * (1 - (1 - config.num_experts_per_tok / config.n_routed_experts) ** rows)
    met = even if experts is None else experts
    routed = sum(
        weight.nbytes for layer in model.weights.layers for weight in weights_of(layer) if is_routed(weight)
    )
    return int(step_bytes(model, rows) + (met - even) / config.n_routed_experts * routed)


def draft_bytes(model: Glm5NextModel, streams: int) -> int:
    """Bytes of weights that one pass of the MTP layer over a row of each stream reads, the head included."""
    config = model.config
    share = 1 - (1 - config.num_experts_per_tok / config.n_routed_experts) ** streams
    total = 0.0
    for part in (model.weights.mtp, model.weights.head):
        for weight in weights_of(part):
            routed = is_routed(weight)
            total += weight.nbytes * (share if routed else 1.0)
    return int(total)


def prompt_flops(model: Glm5NextModel, tokens: int) -> float:
    """Multiplications and additions of a prompt: every matrix a row meets, hyper-connections, attention over
    what is selected (un-absorbed), the indexer's scores and the delta rule in chunks of 64. No head.
    """
    config = model.config
    chosen = config.num_experts_per_tok / config.n_routed_experts
    numbers = 0.0
    for layer in model.weights.layers:
        for weight in weights_of(layer):
            shape = tuple(weight.shape)
            if len(shape) >= 2:
                routed = is_routed(weight)
                numbers += torch.Size(shape).numel() * (chosen if routed else 1.0)
    mla, kda = len(config.mla_layers), len(config.kda_layers)
    width = config.linear_head_dim
    selected = sum(min(at, config.index_topk) for at in range(0, tokens, 64)) * 64 / tokens
    heads = config.num_attention_heads * (config.qk_nope_head_dim + config.v_head_dim)
    attention = mla * 2 * heads * selected
    indexer = mla * 2 * config.index_n_heads * config.index_head_dim * (tokens / 2 / config.index_kpool)
    rule = kda * model.linear_heads * (6 * 64 * width + 6 * width * width)
    return tokens * (2 * numbers + attention + indexer + rule)


def bandwidth(device: torch.device) -> float:
    """Bytes a second of reading and writing 4 GiB in all, by an elementwise operation."""
    source = torch.ones(STREAMED_BYTES // 8, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _median(lambda: torch.add(source, 1.0, out=target))


def matrix_rate(device: torch.device, repeats: int = 20 * REPEATS) -> float:
    """Operations a second of BF16 products of large matrices, as fast as they are held for a while; of few
    repeats, as fast as the device is before its clock drops.
    """
    a = torch.randn(MATRIX, MATRIX, device=device, dtype=torch.bfloat16)
    b, out = torch.randn_like(a), torch.empty_like(a)
    return float(2 * MATRIX**3 / _median(lambda: torch.mm(a, b, out=out), repeats=repeats))


def empty_kernel_seconds(device: torch.device) -> float:
    """Seconds from one kernel of a captured graph to the next where they do nothing."""
    tiny = torch.zeros(1, device=device)
    graph = torch.cuda.CUDAGraph()
    tiny.add_(1)
    with collector_paused(), torch.cuda.graph(graph):
        for _ in range(EMPTY_KERNELS):
            tiny.add_(1)
    return _median(graph.replay) / EMPTY_KERNELS


def _median(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds of one run on the device."""
    times = []
    for _ in range(repeats + 2):
        begin, end = _event(), _event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return float(statistics.median(times[2:]))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
