"""The Triton kernels of latent attention and its indexer on small shapes, in Triton's interpreter: run by
`interpreting`.

Prints one JSON object: case -> the largest error relative to the reference's largest value, infinite where
what must be equal is not.
"""

import json
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from intarsia import formats
from intarsia.kernels.indexer import launch as indexer
from intarsia.kernels.indexer import pool_keys, score_pools, select_tokens, selected_width
from intarsia.kernels.mla import IndexKeys, Latents, encode_latents, entry, products, reference, write_latents
from intarsia.kernels.mla import launch as mla
from intarsia.kernels.mla.case import Ranges
from intarsia.kernels.norm import launch as norm
from intarsia.kernels.norm import reference as norm_reference
from intarsia.kernels.rows import Piece, Rows, rows_of
from tests.kernels.interpreted import DTYPES
from tests.kernels.steps import error, page_table, randn

PAGE, GROUP = 16, 4
TABLE = page_table(3, 8, [*range(23, 11, -1), *range(12)])


def mixed() -> Rows:
    """Recurrent rows, an empty segment, prompts and padding rows."""
    pieces = [(2, 61, 2, True), (0, 5, 1, True), (1, 0, 0, True), (1, 14, 9, False)]
    return rows_of([Piece(stream, at, [0] * n, form) for stream, at, n, form in pieces], TABLE)


def norm_case(dtype: torch.dtype, bias: bool) -> float:
    x = randn(5, 2, 100, seed=1).to(dtype)[:, :, 3:83]
    weight, shift = randn(80, seed=2), randn(80, seed=3) if bias else None
    out = torch.full(x.shape, torch.nan, dtype=dtype)
    norm.launch(x, weight, shift, 1e-5, out)
    if shift is None:
        return error(out, norm_reference.rms_norm(x, weight, 1e-5))
    return error(out, norm_reference.layer_norm(x, weight, shift, 1e-5))


def entry_case(dtype: torch.dtype, scaled: bool) -> float:
    """Groups that begin in the ring and in the step, pages that end in a segment, a ring overwritten."""
    rows = mixed()
    count, width, latent, key = rows.tokens.shape[0], 48, 32, 16
    stack = randn(count, width + latent + 2 * key, seed=1).to(dtype)
    query, new, keys, gates = stack.split([width, latent, key, key], -1)
    weights = [randn(size, seed=size) for size in (width, latent, key)]
    bias, ape = randn(key, seed=5), randn(GROUP, key, seed=6)
    results: list[tuple[Tensor, ...]] = []
    for run in (True, False):
        cache = torch.full((25, PAGE, latent), 7.0, dtype=torch.float8_e4m3fn if scaled else dtype)
        scales = torch.full((25, PAGE), 7.0) if scaled else None
        tail, pooled = (
            randn(3, 7, 2 * key, seed=7).to(dtype),
            torch.full((25, PAGE // GROUP, key), 7.0).to(dtype),
        )
        latents = Latents(query, new, weights[0], weights[1], 1e-5, cache, scales)
        index = IndexKeys(keys, gates, weights[2], bias, 1e-6, ape, tail, pooled)
        if run:
            out = entry.launch(latents, index, rows)
        else:
            out = norm_reference.rms_norm(query, weights[0], 1e-5)
            write_latents(cache, scales, norm_reference.rms_norm(new, weights[1], 1e-5), rows)
            normed = norm_reference.layer_norm(keys, weights[2], bias, 1e-6)
            pool_keys(normed, gates, ape, tail, pooled, rows)
        # Its casts to FP8 and bfloat16 cut off, so codes are compared on a GPU.
        stored = (cache,) if scales is None else (scales,)
        results.append((out[: rows.real], tail, pooled, *stored))
    return max(error(*pair) for pair in zip(*results, strict=True))


def attend_case(dtype: torch.dtype, scaled: bool, at_once: int = 128) -> float:
    """Several ranges, rows in parts of `at_once`, tiles without positions, rows that see nothing, and latents
    that are no numbers where no row sees them.
    """
    rows, heads, width, slots = mixed(), 5, 32, 16 * 8 + 3
    count = rows.tokens.shape[0]
    generator = torch.Generator().manual_seed(1)
    selected = torch.full((count, slots), -1, dtype=torch.int32)
    cache = torch.full((25, PAGE, width), torch.nan)
    for stream in range(3):
        cache[TABLE[stream, :5].long()] = randn(5, PAGE, width, seed=stream)
    for row in range(rows.real):
        seen = int(rows.positions[row]) + 1
        chosen = torch.randperm(seen, generator=generator)[: seen - row % 3].int()
        selected[row, torch.randperm(slots - 60 * (row % 2), generator=generator)[: len(chosen)]] = chosen
    selected[1], selected[count - 1, 0] = -1, 0
    scales = None
    stored = cache.to(dtype)
    if scaled:
        codes, powers = encode_latents(cache.flatten(0, 1))
        stored, scales = codes.view(cache.shape), powers.view(cache.shape[:2])
    q = randn(count, heads, width, seed=4).to(dtype)
    mla._ROWS_AT_ONCE = at_once
    got = mla.attend(q, stored, selected, rows, width**-0.5, scales)
    expected = reference.attend(q.float(), stored, selected, rows, width**-0.5, scales)
    equal = (got[rows.real :] == 0).all() and (got[1] == 0).all()
    return error(got, expected) if equal else torch.inf


def heads_case(dtype: torch.dtype, name: str = "BF16") -> float:
    heads, key, value, latent = 3, 32, 64, 128
    kv_b = formats.get(name).encode(randn(heads * (key + value), latent, seed=1))
    wide = formats.get(name).decode(kv_b, torch.float32)
    q, latents = randn(17, heads, key, seed=2).to(dtype), randn(17, heads, latent, seed=3).to(dtype)
    errors = []
    for rows in (17, 5):
        absorbed = products.absorb(q[:rows], kv_b, key, value)
        expanded = products.expand(latents[:rows], kv_b, key, value)
        errors += [
            error(absorbed, reference.absorb_keys(q[:rows].float(), wide, key, value)),
            error(expanded, reference.expand_values(latents[:rows].float(), wide, key, value)),
        ]
    return max(errors)


def ranges_case(dtype: torch.dtype) -> float:
    """Values out of ranges, one of them without positions, and a row of padding."""
    heads, key, value, latent = 3, 32, 64, 128
    kv_b = formats.get("BF16").encode(randn(heads * (key + value), latent, seed=1))
    wide = formats.get("BF16").decode(kv_b, torch.float32)
    rows = rows_of([Piece(0, 5, [0], True)], TABLE)
    parts, most, weight = (
        randn(2, heads, 3, latent, seed=2),
        randn(2, heads, 3, seed=3),
        torch.ones(2, heads, 3),
    )
    powers = torch.exp2(most - most[..., :2].amax(-1, keepdim=True))
    powers[..., 2] = weight[..., 2] = 0
    most[..., 2] = -1e38
    attended = (parts * powers.unsqueeze(-1)).sum(2) / powers.sum(-1, keepdim=True)
    parts[:, :, 2] = torch.nan
    ranges = Ranges(parts, torch.stack([most, weight], -1), rows)
    got = products.expand_ranges(ranges, dtype, kv_b, key, value)
    expected = reference.expand_values(attended[:1], wide, key, value)
    return error(got[:1], expected) if (got[1] == 0).all() else torch.inf


def scores_case(dtype: torch.dtype) -> float:
    rows, heads, width = mixed(), 16, 32
    q, weights = randn(rows.tokens.shape[0], heads, width, seed=1).to(dtype), randn(16, heads, seed=2)
    cache = randn(25, PAGE // GROUP, width, seed=3).to(dtype)
    weights = weights[: len(q)]
    scores = torch.full((len(q), 8 * PAGE // GROUP), -torch.inf)
    indexer.launch_scores(q, weights, cache, rows, GROUP, scores)
    expected = score_pools(q, weights, cache, rows, GROUP)
    if not torch.equal(scores == -torch.inf, expected == -torch.inf):
        return torch.inf
    seen = expected > -torch.inf
    return error(scores[seen], expected[seen])


def selection_case(pools: int, kept: int) -> float:
    """Ties, both zeros, negative scores; rows that see nothing, few, one chunk and several; exact."""
    count = 11
    scores = (8 * randn(count, pools, seed=1)).round() / 8
    scores[3], scores[4] = 0.0, -0.0
    scores[4, ::3] = 0.0
    scores[5] = -scores[5].abs()
    scores[6] = randn(pools, seed=2)
    seen = [0, kept - 1, 1, pools, pools, pools, pools, kept, kept + 1, pools // 2, 7]
    positions = torch.tensor([max(GROUP * n - 1 + n % GROUP, 0) for n in seen], dtype=torch.int32)
    streams = torch.tensor([0] * 10 + [-1], dtype=torch.int32)
    hidden = torch.arange(pools) >= (positions + 1).unsqueeze(1) // GROUP
    expected = select_tokens(scores.masked_fill(hidden, -torch.inf), positions, kept * GROUP, GROUP)
    got = torch.full((count, selected_width(kept * GROUP, GROUP)), -7, dtype=torch.int32)
    indexer.launch_selection(
        scores.masked_fill(hidden, torch.nan), positions, streams, kept * GROUP, GROUP, got
    )
    return 0.0 if torch.equal(got[:10], expected[:10]) and (got[10] == -1).all() else torch.inf


def several_chunks() -> float:
    indexer._CHUNK, indexer._MIDDLE_CHUNK = 64, 32
    return selection_case(160, 16)


def cases() -> dict[str, Callable[[], float]]:
    found: dict[str, Callable[[], float]] = {}
    for label, dtype in DTYPES.items():
        found[f"rms norm {label}"] = partial(norm_case, dtype, False)
        found[f"layer norm {label}"] = partial(norm_case, dtype, True)
        found[f"entry {label}"] = partial(entry_case, dtype, False)
        found[f"attention {label}"] = partial(attend_case, dtype, False, 2 if dtype == torch.float32 else 128)
        found[f"heads {label}"] = partial(heads_case, dtype)
        found[f"values of ranges {label}"] = partial(ranges_case, dtype)
        found[f"scores {label}"] = partial(scores_case, dtype)
    found["entry FP8 float32"] = partial(entry_case, torch.float32, True)
    found["attention FP8 bfloat16"] = partial(attend_case, torch.bfloat16, True)
    found["heads MXFP8 float32"] = partial(heads_case, torch.float32, "MXFP8")
    found["selection exact"] = partial(selection_case, 100, 16)
    found["selection in chunks exact"] = several_chunks
    return found


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps({name: run() for name, run in cases().items()}))


if __name__ == "__main__":
    main()
