"""The MTP layer: its wiring, its caches, and the chain of drafts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from intarsia.core.rows import pad_rows
from intarsia.engine.runner import ModelRunner
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.rows import Piece, rows_of
from intarsia.models.glm5_next.model import Glm5NextModel
from tests.models.cases import POOLS_OF_4
from tests.models.mtp_oracle import MtpOracle
from tests.models.oracle import TOLERANCE, difference, random_tensors, random_tokens, runtime_weights
from tests.models.streams import Part, Streams

CONFIG = Glm5NextConfig.from_checkpoint_config(POOLS_OF_4)
LENGTH = 120


def run(streams: Streams, following: Sequence[int], hidden: torch.Tensor, counts: Sequence[int] = (1000,)):
    """MTP rows 0.. of stream 0 in pieces of `counts`, repeated: their hidden and what they selected."""
    out, selected, begin, step = [], [], 0, 0
    while begin < len(following):
        part = slice(begin, begin + counts[step % len(counts)])
        piece = Piece(0, begin, following[part], recurrent=False)
        rows = rows_of([piece], streams.state.page_table)
        got, chosen = streams.model.mtp_hidden(rows, pad_rows(hidden[part]), streams.state)
        out.append(got[: len(piece.tokens)])
        selected.append(chosen[: len(piece.tokens)])
        begin, step = begin + len(piece.tokens), step + 1
    return torch.cat(out), torch.cat(selected)


def mtp_cache(state, length):
    """Latents and pooled keys of the MTP layer for the first tokens of stream 0, in their order."""
    pages = state.page_table[0].long()
    pooled = state.pooled[-1][pages].flatten(0, 1)
    return (
        state.latents[-1][pages].flatten(0, 1)[:length],
        pooled[: length // CONFIG.index_kpool],
    )


@pytest.fixture(scope="module")
def flat():
    return runtime_weights(CONFIG, random_tensors(CONFIG, 3))


def build(weights, **changes):
    return Glm5NextModel(replace(CONFIG, **changes), weights, dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def model(flat):
    return build(flat)


@pytest.fixture(scope="module")
def tokens():
    return random_tokens(CONFIG, 1, LENGTH + 40, seed=3)[0]


@pytest.fixture(scope="module")
def hidden(model, tokens):
    return Streams(model).hidden(Part(tokens[:LENGTH]))[0]


def test_the_layer_is_what_transformers_modules_make_of_it(case):
    """Attention, indexer, router and experts are transformers'; only how they are joined is ours."""
    tokens = case.tokens[0]
    with torch.no_grad():
        hidden = case.oracle.model(input_ids=torch.tensor([tokens])).last_hidden_state[0, :-1]
    expected = MtpOracle(case).hidden(tokens[1:], hidden)
    got, selected = run(Streams(case.model), tokens[1:], hidden)
    assert difference(got, expected) < TOLERANCE / 10
    assert ((selected >= 0).sum(1) < torch.arange(1, len(tokens))).sum() > 100


SABOTAGES = {
    "hidden_before_embedding": ("eh_proj", lambda w: w.roll(w.shape[1] // 2, 1)),
    "enorm_left_out": ("enorm", torch.ones_like),
    "hnorm_left_out": ("hnorm", torch.ones_like),
    "input_norm_left_out": ("input_layernorm", torch.ones_like),
    "post_attention_norm_left_out": ("post_attention_layernorm", torch.ones_like),
    "last_norm_left_out": ("shared_head.norm", torch.ones_like),
    "attention_left_out": ("self_attn.o_proj", torch.zeros_like),
    "routed_experts_left_out": ("mlp.experts.down", torch.zeros_like),
    "shared_expert_left_out": ("mlp.shared_experts.down", torch.zeros_like),
}


@pytest.mark.parametrize(("name", "change"), SABOTAGES.values(), ids=SABOTAGES)
def test_a_change_to_the_layer_is_noticed(flat, hidden, tokens, name, change):
    following = tokens[1 : LENGTH + 1]
    true, _ = run(Streams(build(flat)), following, hidden)
    changed = flat | {f"mtp.{name}": change(flat[f"mtp.{name}"])}
    got, _ = run(Streams(build(changed)), following, hidden)
    assert difference(got, true) > 100 * TOLERANCE


def wired(flat, left, right):
    """Weights with `eh_proj` = [left | right] and with attention and experts that add nothing."""
    width = CONFIG.hidden_size
    silent = ("mtp.self_attn.o_proj", "mtp.mlp.experts.down", "mtp.mlp.shared_experts.down")
    changed = flat | {name: torch.zeros_like(flat[name]) for name in silent}
    joint = torch.cat([left * torch.eye(width), right * torch.eye(width)], 1)
    return build(changed | {"mtp.eh_proj": joint})


def norm(x, weight):
    x, weight = x.double(), weight.double()
    return x / (x.square().mean(-1, keepdim=True) + CONFIG.rms_norm_eps).sqrt() * weight


def test_the_left_half_takes_the_embedding_of_the_next_token(flat, hidden, tokens):
    following = tokens[1 : LENGTH + 1]
    got, _ = run(Streams(wired(flat, 1, 0)), following, hidden)
    embedded = flat["embed_tokens"][torch.tensor(following)]
    expected = norm(norm(embedded, flat["mtp.enorm"]), flat["mtp.shared_head.norm"])
    torch.testing.assert_close(got[1:].double(), expected[1:], rtol=1e-4, atol=1e-5)
    assert (got[0] == 0).all()  # the embedding counts as zero at position 0


def test_the_right_half_takes_the_final_hidden(flat, hidden, tokens):
    got, _ = run(Streams(wired(flat, 0, 1)), tokens[1 : LENGTH + 1], hidden)
    expected = norm(norm(hidden, flat["mtp.hnorm"]), flat["mtp.shared_head.norm"])
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)


def test_the_hidden_that_a_runner_shows_it_is_the_final_normed_one(flat, tokens):
    """With [0 | I] the draft's logits are the main model's own, normed twice more."""
    model = wired(flat, 0, 1)
    runner = ModelRunner(model, window=256, max_drafts=3, page=16)
    runner.start(tokens[:70])
    final = Streams(model).hidden(Part(tokens[:70]))[0][-1:]
    expected = norm(norm(final, flat["mtp.hnorm"]), flat["mtp.shared_head.norm"]) @ flat["lm_head"].double().T
    seen = []
    runner.draft(5, 1, lambda logits, position: seen.append((logits, position)) or 9)
    ((logits, position),) = seen
    assert position == 71
    torch.testing.assert_close(logits.double(), expected[0], rtol=1e-4, atol=1e-4)


def test_the_token_at_position_1_does_not_matter_to_row_0(model, hidden, tokens):
    following = tokens[1 : LENGTH + 1]
    other = [(following[0] + 1) % 100, *following[1:]]
    one, _ = run(Streams(model), following, hidden)
    two, _ = run(Streams(model), other, hidden)
    assert torch.equal(one, two)
    third, _ = run(Streams(model), [following[0], (following[1] + 1) % 100, *following[2:]], hidden)
    assert torch.equal(one[0], third[0])
    assert not torch.equal(one[1], third[1])


@pytest.mark.parametrize("counts", [(1,), (1, 2, 3, 5, 17, 40), (4,), (64,), (119, 1)])
@pytest.mark.parametrize("page", [4, 16, 32])
def test_cached_equals_full_to_the_last_bit(model, hidden, tokens, counts, page):
    following = tokens[1 : LENGTH + 1]
    whole, cut = Streams(model, page=page), Streams(model, page=page)
    for streams in (whole, cut):
        streams.poison()
    expected, chosen = run(whole, following, hidden)
    got, selected = run(cut, following, hidden, counts)
    assert torch.equal(got, expected)
    assert torch.equal(selected, chosen)
    for ours, theirs in zip(mtp_cache(cut.state, LENGTH), mtp_cache(whole.state, LENGTH), strict=True):
        assert torch.equal(ours, theirs)
        assert torch.isfinite(ours).all()


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_drafted_rows_are_overwritten_by_true_ones(flat, tokens, share, seed):
    """After any drafts, kept or not, the caches are those of one pass over the true rows."""
    choose = torch.Generator().manual_seed(seed)
    model = build(flat, index_share_for_mtp_iteration=share)
    runner = ModelRunner(model, window=256, max_drafts=5, page=16)
    plain = Streams(model, page=16)
    runner.start(tokens[:70])
    true = plain.hidden(Part(tokens[:70]))
    position = 70
    while position < LENGTH:
        asked, width, kept = (int(torch.randint(1, 6, (), generator=choose)) for _ in range(3))
        if asked < 5:  # sometimes a step is taken without drafting
            runner.draft(tokens[position], asked, lambda logits, _: int(logits.argmin()))
        kept = min(kept, width)
        runner.verify(tokens[position : position + kept] + [7] * (width - kept))
        runner.commit(kept)
        for token in tokens[position : position + kept]:
            true += plain.hidden(Part([token], recurrent=True))
        position += kept
    runner.draft(tokens[position], 5, lambda logits, _: int(logits.argmin()))
    assert runner.length == position
    once = Streams(model, page=16)
    run(once, tokens[1 : position + 1], torch.cat(true))
    for ours, theirs in zip(mtp_cache(runner.state, position), mtp_cache(once.state, position), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("verified", [0, 3])
@pytest.mark.parametrize("share", [True, False])
def test_a_chain_of_drafts(case, share, verified):
    """Each further draft recycles the normed hidden before it; a shared index keeps the first selection."""
    config = replace(case.model.config, index_share_for_mtp_iteration=share)
    weights = runtime_weights(config, case.tensors)
    model = Glm5NextModel(config, weights, dtype=torch.float32, device="cpu")
    tokens, length, oracle = case.tokens[0], 101, MtpOracle(case)
    runner = ModelRunner(model, window=256, max_drafts=4, page=16)
    runner.start(tokens[: length - verified])
    if verified:  # then several rows are absorbed at once, and the last one leads the chain
        runner.verify([*tokens[length - verified : length], 5])
        runner.commit(verified)
    seen = []

    def pick(logits, position):
        seen.append((logits, position))
        return int(logits.topk(3).indices[2])

    drafts = runner.draft(tokens[length], 4, pick)
    assert len(drafts) == 4
    assert [position for _, position in seen] == [length + 1 + i for i in range(4)]

    with torch.no_grad():
        hidden = case.oracle.model(input_ids=torch.tensor([tokens[:length]])).last_hidden_state[0]
    following, fixed = tokens[1 : length + 1], None
    if share:
        fixed = oracle.selection(following, hidden)
    for index, draft in enumerate(drafts):
        out = oracle.hidden(following, hidden, fixed)
        expected = out[-1:] @ oracle.head.T
        assert difference(seen[index][0].unsqueeze(0), expected) < TOLERANCE
        following, hidden = [*following, draft], torch.cat([hidden, out[-1:]])
        if share:
            fixed = torch.cat([fixed, fixed[:, length - 1 : length]], 1)


def test_sharing_the_index_makes_a_difference(flat, tokens):
    """Otherwise the test of the chain would show nothing."""
    logits = {}
    for share in (True, False):
        runner = ModelRunner(build(flat, index_share_for_mtp_iteration=share), window=256, page=16)
        runner.start(tokens[:101])
        seen = []
        runner.draft(tokens[101], 3, lambda row, _, seen=seen: seen.append(row) or 9)
        logits[share] = torch.stack(seen)
    assert torch.equal(logits[True][0], logits[False][0])
    assert not torch.equal(logits[True][1], logits[False][1])
