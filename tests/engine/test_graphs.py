"""Captured steps: laid out in memory that stays where it is, they write what eager steps write."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from intarsia.core.config import GenerationSettings, SamplingSettings
from intarsia.engine.drafting import FixedDepth, MtpDrafter
from intarsia.engine.engine import Engine
from intarsia.engine.generate import Generation
from intarsia.engine.graphs.capture import Captures
from intarsia.engine.graphs.expected import LOOKING, expected_reason
from intarsia.engine.graphs.inputs import Inputs
from intarsia.engine.runner import ModelRunner
from intarsia.engine.sampling import NOTHING_ALLOWED, draw
from intarsia.engine.sampling.captured import (
    COLUMNS,
    UNCERTAIN,
    Way,
    draw_captured,
    rows_of_columns,
    way_of,
    write_columns,
)
from intarsia.kernels import choice
from intarsia.kernels.looks import look, looks
from intarsia.loading.weights import prepared
from intarsia.models.glm5_next.explain import weight_rows
from tests.engine.hash_network import HashNetwork
from tests.engine.recorders import OverwritingRecorder
from tests.engine.serving import (
    SAMPLED,
    SMALL,
    DearCosts,
    EvenCosts,
    assert_clean,
    engine_of,
    expected,
    prompt_of,
    request_of,
    serve,
)
from tests.engine.test_real_rows import SETTINGS, model, prompt

UNCUT = SamplingSettings(temperature=1.1, seed=3)
GREEDY = SamplingSettings()


@pytest.mark.parametrize("drafts", [0, 1, 3])
@pytest.mark.parametrize("costs", [EvenCosts, DearCosts])
def test_an_engine_of_captured_steps_writes_the_same_tokens(drafts, costs):
    """More streams than fit at once, in all ways of drawing, some without drafts, one that ends early."""
    ways = [GREEDY, SAMPLED, UNCUT, GREEDY, SAMPLED, UNCUT]
    requests = [
        request_of(f"r{i}", prompt_of(i, 30 + 17 * i), sampling=way, max_tokens=9 + 5 * i, draft=i != 3)
        for i, way in enumerate(ways)
    ]
    recorder = OverwritingRecorder()
    engine = engine_of(settings=replace(SMALL, drafts=drafts), recorder=recorder, costs=costs())
    for request, outcome in zip(requests, serve(engine, requests), strict=True):
        assert outcome.ids == expected(request)
    assert recorder.replays > 20
    assert_clean(engine)


def test_the_mtp_layer_sees_every_row_in_captured_chains():
    """It guesses blindly if a row was lost, so that fewer of its guesses would be accepted than eagerly."""
    accepted = []
    for recorder in (None, OverwritingRecorder()):
        network = HashNetwork()
        engine = engine_of(network, settings=replace(SMALL, copy_drafts=0), recorder=recorder)
        requests = [request_of(f"r{i}", prompt_of(i, 40), sampling=SAMPLED, max_tokens=40) for i in range(4)]
        outcomes = serve(engine, requests)
        assert network.blind == 0
        accepted.append([outcome.usage.accepted for outcome in outcomes])
    assert accepted[0] == accepted[1]
    assert sum(map(sum, accepted[0])) > 60


class NarrowNetwork(HashNetwork):
    """Refuses what kernels do not expect: more rows of a stream in the written form than a step may have."""

    def mtp_hidden(self, rows, hidden, state, selected=None):
        counts = [segment.count for segment in rows.segments() if segment.recurrent]
        assert max(counts, default=0) <= state.settings.step_rows
        return super().mtp_hidden(rows, hidden, state, selected)


def test_rows_of_prompts_reach_the_mtp_layer_in_the_prompt_form():
    """Also those of lanes that did not guess for a while and have many rows waiting."""

    class Turning(EvenCosts):
        def chain(self, streams):
            self.asked = getattr(self, "asked", 0) + 1
            return 1e-6

        def step(self, rows):
            self.steps = getattr(self, "steps", 0) + 1
            return float(rows) if self.steps // 40 % 2 else 1.0 + 1e-6 * rows

    network, recorder = NarrowNetwork(), OverwritingRecorder()
    engine = engine_of(network, settings=replace(SMALL, copy_drafts=0), recorder=recorder, costs=Turning())
    requests = [request_of(f"r{i}", prompt_of(i, 30 + 50 * i), max_tokens=60) for i in range(3)]
    for request, outcome in zip(requests, serve(engine, requests), strict=True):
        assert outcome.ids == expected(request)
    assert network.blind == 0
    assert recorder.replays > 20
    assert_clean(engine)


def test_replies_that_change_their_logits_are_drawn_from_the_captured_ones():
    requests = [
        request_of("plain", prompt_of(1, 20), sampling=SAMPLED),
        request_of("biased", prompt_of(2, 20), sampling=SAMPLED, logit_bias={5: 30.0}, logprobs=2),
    ]
    plain = serve(engine_of(), requests)
    captured = serve(engine_of(recorder=OverwritingRecorder()), requests)
    assert [outcome.ids for outcome in captured] == [outcome.ids for outcome in plain]
    assert captured[0].ids == expected(requests[0])


@pytest.mark.parametrize(
    "sampling", [GREEDY, replace(SAMPLED, top_p=0.9), UNCUT], ids=["greedy", "cut", "uncut"]
)
def test_bits_of_the_real_network_do_not_depend_on_capturing(sampling):
    requests = [
        request_of(f"r{i}", prompt(i, length), sampling=sampling, logprobs=2, max_tokens=10)
        for i, length in enumerate((5, 64, 100, 17))
    ]
    outcomes = [
        serve(Engine(model(), SETTINGS, costs=EvenCosts(), recorder=recorder), requests)
        for recorder in (None, OverwritingRecorder())
    ]
    for eager, captured in zip(*outcomes, strict=True):
        assert captured.ids == eager.ids
        assert [event.logprobs for event in captured.tokens] == [event.logprobs for event in eager.tokens]


@pytest.mark.parametrize("drafts", [0, 2])
def test_a_lone_stream_verifies_captured_rows_and_guesses_in_captured_passes(drafts):
    settings = GenerationSettings(temperature=0.9, seed=5, max_tokens=12)
    results = []
    for recorder in (None, OverwritingRecorder()):
        runner = ModelRunner(model(), window=384, max_drafts=drafts, page=64, recorder=recorder)
        results.append(
            Generation(
                runner, prompt(3, 70), settings, drafter=MtpDrafter(runner), depth=FixedDepth(drafts)
            ).result
        )
    eager, captured = results
    assert captured.tokens == eager.tokens
    assert captured.drafted == eager.drafted
    assert captured.accepted == eager.accepted
    assert recorder.replays == captured.steps + sum(captured.drafted)


class LookingAway(OverwritingRecorder):
    """As a GPU: nothing is captured in which the host looks at values."""

    may_look = False


def test_a_step_that_looks_at_values_runs_eagerly_and_says_where_it_looks():
    recorder = LookingAway()
    engine = engine_of(recorder=recorder)
    request = request_of("r", prompt_of(1, 20), sampling=SAMPLED)
    assert serve(engine, [request])[0].ids == expected(request)
    assert recorder.replays == 0
    assert "the host looks at where segments begin" in engine.loop.steps.reason


def test_devices_and_settings_that_capture_nothing_say_why():
    assert "cpu" in Captures.on(torch.device("cpu")).reason
    assert "2 ranks" in Captures.on(torch.device("cuda"), 2).reason
    assert "eager" in Captures.on(torch.device("cuda"), eager=True).reason
    assert Captures.on(torch.device("cpu")).bucket(1) is None


def test_looks_are_told_once_and_only_inside():
    look("nothing")
    with looks() as seen:
        look("b")
        look("a")
        look("b")
    assert list(seen) == ["b", "a"]


def test_inputs_of_all_types_arrive_where_they_were_before_once_a_step_takes_them():
    fields = {
        "odd": (torch.int32, (3,)),
        "wide": (torch.int64, (2,)),
        "none": (torch.int32, (0, 4)),
        "real": (torch.float64, (2, 2)),
    }
    inputs = Inputs(fields, torch.device("cpu"))
    views = {name: inputs[name] for name in fields}
    for base in (1, 40):

        def write(arrays, base=base):
            for name, array in arrays.items():
                array[...] = np.arange(array.size).reshape(array.shape) + base
                assert array.shape == fields[name][1]

        before = {name: view.clone() for name, view in views.items()}
        inputs.fill(write)
        assert all(torch.equal(views[name], before[name]) for name in fields)
        inputs.take()
        for name, (dtype, shape) in fields.items():
            assert torch.equal(
                views[name], torch.arange(base, base + views[name].numel(), dtype=dtype).view(shape)
            )


CHOICES = st.sampled_from(
    [
        GREEDY,
        UNCUT,
        SAMPLED,
        SamplingSettings(temperature=0.7, top_k=5, seed=1),
        SamplingSettings(temperature=1.5, min_p=0.05, seed=2),
        SamplingSettings(temperature=3.0, top_p=0.99, seed=4),
        SamplingSettings(temperature=2.0, top_k=200, top_p=0.9, seed=9),
    ]
)


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.lists(CHOICES, min_size=1, max_size=6), st.integers(0, 2**20), st.sampled_from([60, 700]))
def test_a_captured_draw_is_the_draw_or_uncertain(settings, seed, vocabulary):
    logits = 2 * torch.randn(len(settings), vocabulary, generator=torch.Generator().manual_seed(seed))
    logits[:, ::7] = logits[:, 3:4]
    positions = [seed + 3 * i for i in range(len(settings))]
    columns = {name: torch.zeros(len(settings) + 2, dtype=dtype) for name, dtype in COLUMNS.items()}
    write_columns({name: column.numpy() for name, column in columns.items()}, settings, positions)
    padded = torch.cat([logits, logits[:1].expand(2, -1)])
    drawn = draw_captured(padded, rows_of_columns(columns), way_of(settings))[: len(settings)]
    true = draw(logits, torch.tensor(positions), settings)
    certain = drawn != UNCERTAIN
    assert torch.equal(drawn[certain], true[certain])
    for entry, sure in zip(settings, certain.tolist(), strict=True):
        assert sure or (entry.cut and vocabulary > 128)


@pytest.mark.parametrize("way", list(Way))
def test_a_captured_draw_from_nothing_is_told(way):
    logits = torch.randn(4, 50)
    logits[0], logits[1, 3], logits[2, 1:] = -torch.inf, torch.nan, -torch.inf
    columns = {name: torch.zeros(4, dtype=dtype) for name, dtype in COLUMNS.items()}
    entry = {Way.GREEDY: GREEDY, Way.UNCUT: UNCUT}.get(way, SAMPLED)
    write_columns({name: column.numpy() for name, column in columns.items()}, [entry] * 4, [1, 2, 3, 4])
    drawn = draw_captured(logits, rows_of_columns(columns), way).tolist()
    assert drawn[:2] == [NOTHING_ALLOWED] * 2
    assert drawn[2] == 0
    assert drawn[3] >= 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_what_will_be_captured_is_told_from_headers(monkeypatch, dtype):
    """By the table for a GPU; a type that no kernel takes runs the references, which look."""
    monkeypatch.setattr(choice, "no_triton", lambda device: "")
    monkeypatch.setattr(choice, "no_gluon", lambda device: "")
    arrangement, place = prepared("demo"), torch.device("cuda")
    rows = weight_rows(arrangement, place, dtype)
    reason = expected_reason(arrangement.config, rows, place, getattr(torch, dtype))
    if dtype == "float16":
        for operation in LOOKING:
            assert f"{operation} runs the reference" in reason
    else:
        assert reason == ""
    assert "cpu" in expected_reason(arrangement.config, rows, torch.device("cpu"), torch.float32)


def test_every_operation_whose_reference_looks_is_known():
    """Forced references in a step of the real network: each look is of an operation in the list."""
    with choice.forced("reference"), looks() as seen, choice.asked() as cases:
        model().logits([1, 2, 3])
    operations = {case.operation for case in cases}
    assert set(seen) == {"how many rows are real", "where segments begin", "which experts are chosen"}
    assert operations >= LOOKING
