"""Linear attention between its projections: rows that are written, rows to verify, prompts."""

from collections.abc import Iterable, Sequence
from functools import partial
from importlib import import_module

import torch
from torch import Tensor

from intarsia.evidence.kernels.bench import Bench
from intarsia.evidence.kernels.timing import Call
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.kda import Cache, Parameters, Projected, attention_step
from intarsia.kernels.rows import Rows

STREAMS, DRAFTS = 128, 3
DECODED, VERIFIED, PROMPTS = (1, 8, 32, 128), (1, 8, 32), (1024, 2048, 8192)
POSITION = 128
TURNS = 16
DECODE, VERIFY, PROMPT = "decode", f"verify {DRAFTS + 1} rows a stream", "prompt"
PEER_MODULES = ("fla.ops.kda", "fla.modules.causal_conv1d", "fla.modules.norm.fused_norm_gate")
FLA, FLA_WHOLE = "fla-core", "fla-core, all of it"
FLA_OPTIONS = {
    "output_final_state": True,
    "use_qk_l2norm_in_kernel": True,
    "use_gate_in_kernel": True,
    "use_beta_sigmoid_in_kernel": True,
}


def measure(bench: Bench) -> None:
    """Convolution, gates, delta rule, norm and output gate together."""
    _streams(bench, DECODE, 1, bench.counts(DECODED, most=STREAMS))
    _streams(bench, VERIFY, 1 + DRAFTS, bench.counts(VERIFIED, most=STREAMS))
    _prompts(bench, bench.counts(PROMPTS, least=512))


def state_bytes(config: Glm5NextConfig) -> int:
    """Of one stream's memory."""
    return config.linear_num_heads * config.linear_head_dim**2 * 4


def moved_by_streams(config: Glm5NextConfig, streams: int, each: int) -> int:
    """Bytes: the state read once and written for every row; raw rows of the window read, then those of the
    step read and kept; decay, gate and result of every row.
    """
    raw, kept = 2 * 3 * config.linear_width, config.linear_conv_kernel_dim - 1
    window = raw * (kept + 2 * each)
    return streams * (state_bytes(config) * (1 + each) + window + each * 3 * 2 * config.linear_width)


def moved_by_prompt(config: Glm5NextConfig, rows: int) -> int:
    """Bytes: q, k, v, decay, gate and result of every row; the state read and written."""
    return rows * 2 * (3 + 1 + 1 + 1) * config.linear_width + 2 * state_bytes(config)


def _streams(bench: Bench, case: str, each: int, counts: Iterable[int]) -> None:
    """Rows in the recurrent form, `each` a stream; different streams in turn."""
    weights, kept = _parameters(bench), _cache(bench, STREAMS, each)
    for streams in counts:
        firsts = range(0, STREAMS - streams + 1, streams)[:TURNS]
        steps = [_rows(bench, first, streams, each, recurrent=True) for first in firsts]
        given = _projected(bench, steps[0].tokens.shape[0])
        taken = bench.clock(
            [partial(attention_step, given, weights, kept, rows, overlap=True) for rows in steps]
        )
        states = [kept.memory[first : first + streams, 0] for first in firsts]
        beside: dict[str, float] = {}
        if each == 1:
            beside |= bench.peer(FLA, partial(_fla_rows, bench, states))
            beside |= bench.peer(FLA_WHOLE, partial(_fla_rows, bench, states, whole=True))
        moved = moved_by_streams(bench.config, streams, each)
        bench.table.add("kda", case, streams * each, taken, moved=moved, beside=beside)


def _prompts(bench: Bench, counts: Iterable[int]) -> None:
    """Two prompts in turn."""
    weights, kept = _parameters(bench), _cache(bench, 2, 1)
    for rows in counts:
        given = _projected(bench, rows)
        steps = [_rows(bench, stream, 1, rows, recurrent=False) for stream in range(2)]
        taken = bench.clock([partial(attention_step, given, weights, kept, step) for step in steps])
        beside = bench.peer(FLA, partial(_fla_prompt, bench, rows))
        beside |= bench.peer(FLA_WHOLE, partial(_fla_prompt, bench, rows, whole=True))
        moved = moved_by_prompt(bench.config, rows)
        bench.table.add("kda", PROMPT, rows, taken, moved=moved, beside=beside)


def _projected(bench: Bench, rows: int) -> Projected:
    columns = bench.config.linear_width
    return Projected(
        raw=bench.numbers(rows, 3 * columns),
        decay=bench.numbers(rows, columns),
        gate=bench.numbers(rows, columns),
        beta=bench.numbers(rows, bench.config.linear_num_heads, dtype=torch.float32),
    )


def _parameters(bench: Bench) -> Parameters:
    config, wide = bench.config, torch.float32
    return Parameters(
        taps=bench.numbers(3 * config.linear_width, config.linear_conv_kernel_dim, dtype=wide),
        a_log=0.1 * bench.numbers(config.linear_num_heads, dtype=wide),
        dt_bias=0.1 * bench.numbers(config.linear_width, dtype=wide),
        norm=1 + 0.1 * bench.numbers(config.linear_head_dim, dtype=wide),
        lower_bound=config.linear_lower_bound,
        eps=config.rms_norm_eps,
    )


def _cache(bench: Bench, streams: int, copies: int) -> Cache:
    config = bench.config
    heads, width, kept = config.linear_num_heads, config.linear_head_dim, config.linear_conv_kernel_dim - 1
    return Cache(
        memory=bench.numbers(streams, copies, heads, width, width, dtype=torch.float32),
        window=bench.numbers(streams, kept + copies, 3 * config.linear_width),
        current=bench.integers([0] * streams),
    )


def _rows(bench: Bench, first: int, streams: int, each: int, *, recurrent: bool) -> Rows:
    """`each` rows of each of some streams, from one position of the grid on, padded to 16."""
    count = streams * each
    padded = max(16, -(-count // 16) * 16)
    owners = [first + row // each for row in range(count)]
    return Rows(
        tokens=torch.zeros(padded, dtype=torch.int64, device=bench.device),
        positions=bench.integers([POSITION + row % each for row in range(padded)]),
        streams=bench.integers(owners + [-1] * (padded - count)),
        starts=bench.integers(list(range(0, count + 1, each))),
        page_table=bench.integers([0] * STREAMS).unsqueeze(1),
        recurrent_segments=streams if recurrent else 0,
    )


def _fla_inputs(bench: Bench, batch: int, rows: int) -> dict[str, Tensor]:
    """Rows that are convolved already: fla-core leaves out convolution, norm and output gate."""
    heads, width = bench.config.linear_num_heads, bench.config.linear_head_dim
    inputs = {name: bench.numbers(batch, rows, heads, width) for name in ("q", "k", "v", "g")}
    return inputs | {
        "beta": bench.numbers(batch, rows, heads),
        "A_log": 0.1 * bench.numbers(heads, dtype=torch.float32),
        "dt_bias": 0.1 * bench.numbers(heads * width, dtype=torch.float32),
    }


def _fla_rows(bench: Bench, states: Sequence[Tensor], whole: bool = False) -> list[Call]:
    recurrent = import_module(PEER_MODULES[0]).fused_recurrent_kda
    batch = states[0].shape[0]
    inputs = _fla_inputs(bench, batch, 1)
    options = FLA_OPTIONS | {"lower_bound": bench.config.linear_lower_bound}
    if not whole:
        return [partial(recurrent, **inputs, initial_state=state, **options) for state in states]
    update = import_module(PEER_MODULES[1]).causal_conv1d_update
    around = _FlaAround(bench, batch, 1)
    shape = (batch, bench.config.linear_width, bench.config.linear_conv_kernel_dim)
    caches = [[bench.numbers(*shape) for _ in "qkv"] for _ in states]

    def call(state: Tensor, kept: list[Tensor]) -> Tensor:
        mixed = [
            update(raw, cache, weight=around.taps, activation="silu")[0]
            for raw, cache in zip(around.raw, kept, strict=True)
        ]
        rows = inputs | around.heads_of(mixed)
        return around.gated(recurrent(**rows, initial_state=state, **options)[0])

    return [partial(call, state, kept) for state, kept in zip(states, caches, strict=True)]


def _fla_prompt(bench: Bench, rows: int, whole: bool = False) -> list[Call]:
    heads, width = bench.config.linear_num_heads, bench.config.linear_head_dim
    chunked = import_module(PEER_MODULES[0]).chunk_kda
    inputs = _fla_inputs(bench, 1, rows)
    state = bench.numbers(1, heads, width, width, dtype=torch.float32)
    options = FLA_OPTIONS | {"lower_bound": bench.config.linear_lower_bound, "safe_gate": True}
    if not whole:
        return [partial(chunked, **inputs, initial_state=state, **options)] * 2
    convolve = import_module(PEER_MODULES[1]).causal_conv1d
    around = _FlaAround(bench, 1, rows)
    before = bench.numbers(1, bench.config.linear_width, bench.config.linear_conv_kernel_dim)
    kept = {"initial_state": before, "output_final_state": True}

    def call() -> Tensor:
        mixed = [convolve(raw, around.taps, activation="silu", **kept)[0] for raw in around.raw]
        return around.gated(chunked(**(inputs | around.heads_of(mixed)), initial_state=state, **options)[0])

    return [call] * 2


class _FlaAround:
    """What fla-core has in kernels of their own: a convolution each of q, k and v, then norm and gate."""

    def __init__(self, bench: Bench, batch: int, rows: int) -> None:
        config = bench.config
        self.shape = (batch, rows, config.linear_num_heads, config.linear_head_dim)
        self.raw = [bench.numbers(batch, rows, config.linear_width) for _ in "qkv"]
        self.taps = bench.numbers(config.linear_width, config.linear_conv_kernel_dim)
        self.gate = bench.numbers(*self.shape)
        self.norm = 1 + 0.1 * bench.numbers(config.linear_head_dim)
        self.eps = config.rms_norm_eps
        self._gated = import_module(PEER_MODULES[2]).rms_norm_gated

    def heads_of(self, mixed: Sequence[Tensor]) -> dict[str, Tensor]:
        """q, k and v [batch, rows, heads, width]."""
        return {name: part.view(self.shape) for name, part in zip("qkv", mixed, strict=True)}

    def gated(self, out: Tensor) -> Tensor:
        """Norm of each head and the output gate."""
        result: Tensor = self._gated(out, self.gate, self.norm, None, activation="sigmoid", eps=self.eps)
        return result
