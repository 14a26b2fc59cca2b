"""One MLA layer over a window of a million tokens, against float64 at sampled positions."""

import pytest
import torch
from torch import Tensor

from intarsia.evidence.synthetic.geometry import geometry
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.rows import Piece, rows_of
from intarsia.models.glm5_next.attention import INDEX_NORM_EPS, mla
from intarsia.models.glm5_next.state import MlaCache
from intarsia.models.glm5_next.weights import IndexerWeights, MlaWeights

pytestmark = pytest.mark.gpu

WINDOW, PAGE = 1 << 20, 512
PAGES = WINDOW // PAGE
# Rows and weights are bfloat16, and so is what lies between products.
ROUNDING = 2e-2


@pytest.fixture(scope="module", autouse=True)
def needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="module")
def config() -> Glm5NextConfig:
    return Glm5NextConfig.from_checkpoint_config(geometry("glm-5.3-flash"))


def random(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return (torch.randn(shape, generator=generator, device="cuda") * scale).bfloat16()


def matrix(rows: int, columns: int, seed: int) -> Tensor:
    return random(rows, columns, seed=seed, scale=columns**-0.5)


@pytest.fixture(scope="module")
def weights(config) -> MlaWeights:
    d, q, latent, heads = (
        config.hidden_size,
        config.q_lora_rank,
        config.kv_lora_rank,
        config.num_attention_heads,
    )
    key, value, width = config.qk_nope_head_dim, config.v_head_dim, config.index_head_dim
    index_heads = config.index_n_heads
    return MlaWeights(
        q_a=matrix(q, d, 1),
        q_a_norm=1 + random(q, seed=2, scale=0.1),
        q_b=4 * matrix(heads * key, q, 3),
        kv_a=matrix(latent, d, 4),
        kv_a_norm=1 + random(latent, seed=5, scale=0.1),
        kv_b=matrix(heads * (key + value), latent, 6),
        o=matrix(d, heads * value, 7),
        indexer=IndexerWeights(
            wq_b=matrix(index_heads * width, q, 8),
            wk=matrix(width, d, 9),
            k_norm=1 + random(width, seed=10, scale=0.1),
            k_norm_bias=random(width, seed=11, scale=0.1),
            weights=matrix(index_heads, d, 12),
            gate=matrix(width, d, 13),
            ape=random(config.index_kpool, width, seed=14),
        ),
    )


@pytest.fixture(scope="module")
def cache(config) -> MlaCache:
    """Random latents and pooled keys for every position, and NaN in the null page."""
    group, width = config.index_kpool, config.index_head_dim
    latents = random(PAGES + 1, PAGE, config.kv_lora_rank, seed=15)
    pooled = random(PAGES + 1, PAGE // group, width, seed=16)
    latents[-1], pooled[-1] = torch.nan, torch.nan
    return MlaCache(latents, pooled, random(1, group + 7, 2 * width, seed=17))


@pytest.fixture(scope="module")
def table() -> Tensor:
    order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(18))
    return order.int().unsqueeze(0).cuda()


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def tokens_of(cache: Tensor, table: Tensor, positions: Tensor, page: int) -> Tensor:
    return cache[table[0, positions // page].long(), positions % page].double()


def expected_output(x, w, config, cache, table, selected) -> Tensor:
    """One row's output from the tokens that were selected, float64."""
    heads, key, value = config.num_attention_heads, config.qk_nope_head_dim, config.v_head_dim
    r = rms(w.q_a.double() @ x.double(), w.q_a_norm, config.rms_norm_eps)
    q = (w.q_b.double() @ r).view(heads, key)
    kv = w.kv_b.double().view(heads, key + value, -1)
    latents = tokens_of(cache.latents, table, selected, PAGE)
    absorbed = torch.einsum("hk,hkl->hl", q, kv[:, :key])
    attention = torch.softmax(absorbed @ latents.T * key**-0.5, -1)
    return w.o.double() @ torch.einsum("hl,hvl->hv", attention @ latents, kv[:, key:]).flatten()


def scores_in_pieces(x, w, config, cache, table, pools: int) -> Tensor:
    """A row's exact scores of all pools that it sees, 65,536 at a time."""
    heads, width, group = config.index_n_heads, config.index_head_dim, config.index_kpool
    r = rms(w.q_a.double() @ x.double(), w.q_a_norm, config.rms_norm_eps)
    q = (w.indexer.wq_b.double() @ r).view(heads, width)
    head_weights = w.indexer.weights.double() @ x.double() * heads**-0.5
    parts = []
    for numbers in torch.arange(pools, device="cuda").split(65536):
        keys = tokens_of(cache.pooled, table, numbers, PAGE // group)
        parts.append(head_weights @ torch.relu(q @ keys.T * width**-0.5))
    return torch.cat(parts) if parts else torch.empty(0, device="cuda", dtype=torch.float64)


@pytest.mark.parametrize("recurrent", [True, False], ids=["recurrent", "prompt"])
@pytest.mark.parametrize("position", [0, 2045, 2050, 99_998, 524_287, 1_048_571])
def test_one_layer_is_right_at_sampled_positions(position, recurrent, config, weights, cache, table):
    rows = rows_of([Piece(0, position, [0] * 5, recurrent)], table)
    x = random(rows.tokens.shape[0], config.hidden_size, seed=position + 100)
    got, chosen = mla(x, weights, config, cache, rows)
    group, top = config.index_kpool, config.index_topk
    for row in range(5):
        at = position + row
        latent = rms(weights.kv_a.double() @ x[row].double(), weights.kv_a_norm, config.rms_norm_eps)
        stored = tokens_of(cache.latents, table, torch.tensor([at], device="cuda"), PAGE)[0]
        assert (stored - latent).abs().max() <= ROUNDING * latent.abs().max()
        selected = chosen[row][chosen[row] >= 0].long()
        pools = (at + 1) // group
        kept = min(top // group, pools)
        assert selected[kept * group :].tolist() == list(range(pools * group, at + 1))
        picked = selected[: kept * group].view(-1, group)
        assert torch.equal(picked, picked[:, :1] + torch.arange(group, device="cuda"))
        numbers = picked[:, 0] // group
        assert (picked[:, 0] % group == 0).all()
        assert (numbers[1:] > numbers[:-1]).all()
        scores = scores_in_pieces(x[row], weights, config, cache, table, pools)
        left_out = torch.ones(pools, dtype=torch.bool, device="cuda")
        left_out[numbers] = False
        if left_out.any():
            assert scores[numbers].min() >= scores[left_out].max() - ROUNDING * scores.abs().max()
        expected = expected_output(x[row], weights, config, cache, table, selected)
        assert (got[row].double() - expected).abs().max() <= ROUNDING * expected.abs().max()


def test_a_pooled_key_is_the_gated_sum_of_its_tokens(config, weights, cache, table):
    position = 777_776
    rows = rows_of([Piece(0, position, [0] * 4, False)], table)
    x = random(rows.tokens.shape[0], config.hidden_size, seed=5)
    mla(x, weights, config, cache, rows)
    i = weights.indexer
    keys = torch.nn.functional.layer_norm(
        x[:4].double() @ i.wk.double().T,
        (config.index_head_dim,),
        i.k_norm.double(),
        i.k_norm_bias.double(),
        INDEX_NORM_EPS,
    )
    share = torch.softmax(x[:4].double() @ i.gate.double().T + i.ape.double(), 0)
    number = torch.tensor([position // config.index_kpool], device="cuda")
    got = tokens_of(cache.pooled, table, number, PAGE // config.index_kpool)[0]
    expected = (share * keys).sum(0)
    assert (got - expected).abs().max() <= ROUNDING * expected.abs().max()
