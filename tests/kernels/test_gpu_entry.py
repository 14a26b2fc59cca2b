"""Norms and what rows leave in their caches, on a GPU: right, and the same bits in whatever pieces."""

import pytest
import torch
from torch import Tensor

from intarsia.kernels import choice
from intarsia.kernels.mla import IndexKeys, Latents, enter_rows, entry
from intarsia.kernels.norm import launch as norm
from intarsia.kernels.norm import reference as norm_reference
from intarsia.kernels.rows import Rows
from tests.kernels.latent_cases import COUNTS, DTYPES, caches, gpu, run_entry, step, table

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="module", autouse=True)
def poisoned_memory():
    """Memory that torch hands out again holds NaN, so that an output nobody writes shows."""
    if torch.cuda.is_available():
        torch.full((256 << 20,), torch.nan, device="cuda")
        torch.cuda.synchronize()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [80, 512, 4096])
def test_norms(width, dtype):
    x, weight, bias = (
        gpu(1024, width + 8, seed=1).to(dtype)[:, 3 : width + 3],
        gpu(width, seed=2),
        gpu(width, seed=3),
    )
    for shift in (None, bias):
        out = torch.full((1024, width), torch.nan, dtype=dtype, device="cuda")
        norm.launch(x, weight, shift, 1e-5, out)
        if shift is None:
            expected = norm_reference.rms_norm(x.double(), weight.double(), 1e-5)
        else:
            expected = torch.nn.functional.layer_norm(
                x.double(), (width,), weight.double(), shift.double(), 1e-5
            )
        limit = 1e-6 if dtype == torch.float32 else 4e-3
        torch.testing.assert_close(out.double(), expected, rtol=limit, atol=limit)
        assert all(torch.equal(norm.launch(x[:n], weight, shift, 1e-5), out[:n]) for n in COUNTS)


def by_reference(latents: Latents, keys: IndexKeys, rows: Rows) -> Tensor:
    with choice.forced("reference"):
        return enter_rows(latents, keys, rows)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_enter_their_caches(dtype, scaled):
    rows = step((2, 61, 8, True), (0, 5, 1, True), (1, 0, 0, True), (1, 510, 700, False), (3, 1023, 2, False))
    (ours, state), (expected, other) = (
        (run_entry(rows, state, dtype, run), state)
        for run, state in ((entry.launch, caches(dtype, scaled)), (by_reference, caches(dtype, scaled)))
    )
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    real = int(rows.starts[-1])
    torch.testing.assert_close(ours[:real].float(), expected[:real].float(), rtol=limit, atol=limit)
    assert ours.isfinite().all()
    for name, got, wanted in zip(("latents", "scales", "tail", "pooled"), state, other, strict=True):
        if got is None:
            continue
        if name == "latents" and scaled:
            # Rounding of a norm may send a value to the next code, and a row to the next power of two.
            got, wanted = got.float() * state[1].unsqueeze(-1), wanted.float() * other[1].unsqueeze(-1)
            torch.testing.assert_close(got, wanted, rtol=0.13, atol=0.1)
        elif name == "scales":
            assert ((got / wanted).log2().abs() <= 1).all()
            assert (got != wanted).sum() <= 3
        else:
            torch.testing.assert_close(got.float(), wanted.float(), rtol=limit, atol=limit)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("counts", [(1,) * 61, (3, 1, 7, 2, 48), (8, 8, 8, 8, 8, 8, 8, 5)])
def test_entering_in_pieces_leaves_the_same_bits(counts, scaled):
    state, other = caches(torch.bfloat16, scaled), caches(torch.bfloat16, scaled)
    whole = run_entry(step((1, 0, 61, False)), state, torch.bfloat16)
    begin = 0
    for count in counts:
        rows = step((0, 100, 3, True), (1, begin, count, count <= 8), (2, 10, 5, False))
        rows = rows if count <= 8 else step((0, 100, 3, True), (1, begin, count, False))
        at = 3
        got = run_entry(rows, other, torch.bfloat16)
        assert torch.equal(got[at : at + count], whole[begin : begin + count])
        begin += count
    mine = table()[1].long()
    for name, one, two in zip(("latents", "scales", "tail", "pooled"), state, other, strict=True):
        if one is not None:
            pick = 1 if name == "tail" else mine
            assert torch.equal(one[pick].float(), two[pick].float()), name
