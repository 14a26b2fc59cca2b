"""The network's logits are transformers', however the tokens are cut into steps."""

import random

import pytest
import torch

from intarsia.kernels.indexer import selected_width
from tests.models.oracle import TOLERANCE, difference, network
from tests.models.streams import Part, Streams

UNEVEN = (1, 2, 3, 5, 17, 40, 9, 64)


def test_whole_prompts(case):
    for tokens, expected in zip(case.tokens, case.expected, strict=True):
        assert difference(case.model.logits(tokens), expected) < TOLERANCE


def test_uneven_pieces_of_a_prompt(case):
    for tokens, expected in zip(case.tokens, case.expected, strict=True):
        assert difference(Streams(case.model).run(tokens, UNEVEN), expected) < TOLERANCE


def test_token_by_token(case):
    got = Streams(case.model).run(case.tokens[0], (1,), recurrent=True)
    assert difference(got, case.expected[0]) < TOLERANCE


def test_several_recurrent_rows_a_step(case):
    got = Streams(case.model, step_rows=8).run(case.tokens[1], range(1, 9), recurrent=True)
    assert difference(got, case.expected[1]) < TOLERANCE


def test_a_prompt_continued_token_by_token(case):
    streams = Streams(case.model)
    prompt, rest = case.tokens[2][:101], case.tokens[2][101:]
    got = torch.cat([streams.run(prompt, (101,)), streams.run(rest, (1,), recurrent=True)])
    assert difference(got, case.expected[2]) < TOLERANCE


def test_steps_that_mix_prompts_and_recurrent_rows_of_several_streams(case):
    """Every step runs up to three streams, some in each form, with their pages interleaved out of order."""
    choose = random.Random(5)
    order = choose.sample(range(24), 24)
    streams = Streams(case.model, streams=3, page=32, step_rows=4, order=order)
    got: list[list[torch.Tensor]] = [[], [], []]
    kinds = set()
    while any(length < len(case.tokens[0]) for length in streams.lengths):
        parts = []
        for stream in choose.sample(range(3), choose.randint(1, 3)):
            recurrent = choose.random() < 0.6
            begin = streams.lengths[stream]
            count = choose.randint(1, 4 if recurrent else 50)
            if tokens := case.tokens[stream][begin : begin + count]:
                parts.append(Part(tokens, stream, recurrent))
        if not parts:
            continue
        kinds.add(frozenset(part.recurrent for part in parts))
        for part, logits in zip(parts, streams.step(*parts), strict=True):
            got[part.stream].append(logits)
    assert frozenset({True, False}) in kinds
    for stream in range(3):
        assert difference(torch.cat(got[stream]), case.expected[stream]) < TOLERANCE


def test_in_bfloat16_the_network_is_the_same_up_to_rounding(case):
    """Rounding sends some rows to other experts or pools, more in longer contexts, so this is rough."""
    got = network(case.config, case.tensors, torch.bfloat16).logits(case.tokens[0][:32])
    assert got.dtype == torch.float32
    cosine = torch.nn.functional.cosine_similarity(got, case.expected[0][:32], dim=-1)
    assert cosine.median() > 0.998


def test_the_cases_reach_what_they_are_for(case, monkeypatch):
    """Selection drops tokens; the clamp acts on more than 1 % of gate and of up units, dense and routed."""
    clamped: dict[str, list[torch.Tensor]] = {"dense and shared": [], "routed": []}
    selections = []
    limit = case.model.config.swiglu_limit

    def watch(path, kind):
        module, _, name = path.rpartition(".")
        original = getattr(__import__(module, fromlist=[name]), name)

        def spy(*arguments):
            result = original(*arguments)
            kind(arguments, result)
            return result

        monkeypatch.setattr(path, spy)

    def units(where):
        # Padding rows are zero and would hide how many of the real units are clamped.
        return lambda arguments, _: clamped[where].append(arguments[0][arguments[0].abs().sum(1) > 0])

    watch("intarsia.kernels.linear.swiglu.activate", units("dense and shared"))
    watch("intarsia.kernels.experts.reference.swiglu", units("routed"))
    watch("intarsia.kernels.indexer.choosing.select_tokens", lambda _, result: selections.append(result))
    case.model.logits(case.tokens[0])

    for where, inputs in clamped.items():
        gates, ups = zip(*(rows.chunk(2, -1) for rows in inputs), strict=True)
        assert torch.cat([gate.flatten() for gate in gates]).gt(limit).float().mean() > 0.01, where
        assert torch.cat([up.flatten() for up in ups]).abs().gt(limit).float().mean() > 0.01, where
    config, length = case.model.config, len(case.tokens[0])
    assert len(selections) == len(config.mla_layers)
    for selected in selections:
        assert selected.shape[1] == selected_width(config.index_topk, config.index_kpool)
        visible = torch.arange(1, length + 1)
        dropped = visible - (selected[:length] >= 0).sum(1)
        assert (dropped >= 0).all()
        assert (dropped > 0).sum() > 100
        # Not simply the latest tokens.
        assert ((selected[:length] >= 0) & (selected[:length] < visible.unsqueeze(1) - 64)).any(1).sum() > 50


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17])
def test_very_short_prompts(case, count):
    got = case.model.logits(case.tokens[0][:count])
    assert got.shape == (count, case.model.config.vocab_size)
    assert got.dtype == torch.float32
    if count:
        assert (got - case.expected[0][:count]).abs().max() < TOLERANCE * case.expected[0].abs().max()
