"""Candidates of shards of the vocabulary: what several ranks draw is what one draws."""

import itertools
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.engine.sampling import SamplingSettings, draw
from intarsia.engine.sampling.captured import (
    COLUMNS,
    UNCERTAIN,
    Way,
    draw_captured,
    rows_of_columns,
    way_of,
    write_columns,
)
from intarsia.engine.sampling.shards import WHOLE, Shards, draw_shards

ROWS, VOCABULARY = 6, 640
POSITIONS = torch.arange(100, 100 + ROWS)
CUT = {"temperature": 1.0, "seed": 9}
CHOICES = [
    SamplingSettings(),
    SamplingSettings(**CUT),
    SamplingSettings(temperature=0.3, seed=2),
    SamplingSettings(**CUT, top_k=1),
    SamplingSettings(**CUT, top_k=40),
    SamplingSettings(**CUT, top_k=300, top_p=0.9),
    SamplingSettings(**CUT, top_p=0.05),
    SamplingSettings(**CUT, top_p=0.9),
    SamplingSettings(temperature=50.0, top_p=0.999, seed=1),
    SamplingSettings(**CUT, top_p=0.7, min_p=0.2),
]


class ThreadGroup:
    """Ranks as threads; counts the bytes that each sends to each other."""

    def __init__(self, rank, table, meeting):
        self.rank, self.ranks = rank, len(table)
        self.sent = 0
        self._table, self._meeting = table, meeting

    def gather(self, tensor):
        self._table[self.rank] = tensor
        self._meeting.wait(20)
        found = list(self._table)
        self._meeting.wait(20)
        self.sent += tensor.nbytes
        assert len({part.shape for part in found}) == 1
        return found

    def largest(self, numbers):
        return torch.stack(self.gather(numbers)).amax(0)

    def gather_columns(self, tensor, widths):
        padded = torch.nn.functional.pad(tensor, (0, max(widths) - tensor.shape[1]))
        return torch.cat(
            [part[:, :width] for part, width in zip(self.gather(padded), widths, strict=True)], 1
        )


def on_shards(logits, edges, work):
    """What `work(own logits, shards)` gives on every rank, and the bytes rank 0 sent."""
    parts = tuple(range(a, b) for a, b in itertools.pairwise(edges))
    table, meeting = [None] * len(parts), threading.Barrier(len(parts))
    groups = [ThreadGroup(rank, table, meeting) for rank in range(len(parts))]
    results = [None] * len(parts)

    def run(rank):
        own = logits[:, parts[rank].start : parts[rank].stop].clone()
        results[rank] = work(own, Shards(groups[rank], parts))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results, groups[0].sent


def captured(choices, own, shards, positions=POSITIONS):
    columns = {name: torch.zeros(len(choices), dtype=dtype).numpy() for name, dtype in COLUMNS.items()}
    write_columns(columns, choices, positions.tolist())
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    return draw_captured(own, rows_of_columns(tensors), way_of(choices), shards)


@st.composite
def rows_of_logits(draw_value):
    """Rows with peaks, plains of equal numbers, zeros of both signs, and numbers that are none."""
    seed = draw_value(st.integers(0, 2**32))
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, VOCABULARY, generator=generator) * draw_value(
        st.sampled_from([0.0, 0.5, 4.0, 40.0])
    )
    if draw_value(st.booleans()):
        logits = logits.round()  # many equal ones, in all shards
    for row in range(ROWS):
        match draw_value(
            st.sampled_from(["plain", "plain", "peaks", "zeros", "masked", "nothing", "nan", "-nan", "inf"])
        ):
            case "peaks":
                logits[row, draw_value(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4))] = (
                    77.0
                )
            case "zeros":
                logits[row] = torch.tensor([0.0, -0.0]).repeat(VOCABULARY // 2)
            case "masked":
                few = draw_value(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3))
                kept = logits[row, few]
                logits[row] = -torch.inf
                logits[row, few] = kept
            case "nothing":
                logits[row] = -torch.inf
            case "nan" | "-nan" as kind:
                number = torch.tensor(torch.nan)
                at = draw_value(st.integers(0, VOCABULARY - 1))
                logits[row, at] = torch.copysign(number, torch.tensor(-1.0 if kind == "-nan" else 1.0))
            case "inf":
                logits[row, draw_value(st.integers(0, VOCABULARY - 1))] = torch.inf
    return logits


cuts = st.lists(st.integers(1, VOCABULARY - 1), max_size=3, unique=True).map(
    lambda found: [0, *sorted(found), VOCABULARY]
)


@settings(max_examples=80, deadline=None)
@given(
    rows_of_logits(), cuts, st.lists(st.sampled_from(CHOICES), min_size=ROWS, max_size=ROWS), st.booleans()
)
def test_one_to_four_ranks_draw_the_tokens_of_one(logits, edges, choices, alike):
    if alike:
        choices = choices[:1] * ROWS
    expected = draw(logits, POSITIONS, choices)

    def work(own, shards):
        return draw_shards(own, POSITIONS, choices, shards), captured(choices, own, shards)

    alone = captured(choices, logits, WHOLE)
    for eager, recorded in on_shards(logits, edges, work)[0]:
        assert torch.equal(eager, expected)
        certain = recorded != UNCERTAIN
        assert torch.equal(recorded[certain], expected[certain])
        # what more ranks offer is at least what one offers
        assert bool(certain[alone != UNCERTAIN].all())


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_flat_rows_are_left_to_wider_candidates(ranks):
    logits = torch.zeros(ROWS, 4096)
    choice = SamplingSettings(temperature=1.0, top_p=0.9, seed=3)
    edges = [0, *(4096 * rank // ranks // 64 * 64 for rank in range(1, ranks)), 4096]

    def work(own, shards):
        return captured([choice] * ROWS, own, shards), draw_shards(own, POSITIONS, choice, shards)

    for recorded, eager in on_shards(logits, edges, work)[0]:
        assert bool((recorded == UNCERTAIN).all())
        assert torch.equal(eager, draw(logits, POSITIONS, choice))


@pytest.mark.parametrize(
    ("choice", "way", "sent"),
    [
        (SamplingSettings(), Way.GREEDY, 8),
        (SamplingSettings(temperature=1.0, seed=1), Way.UNCUT, 4 + 3 * 8),
        (SamplingSettings(temperature=1.0, top_p=0.9, seed=1), Way.CUT, 4 + 130 * 8),
    ],
)
def test_what_travels_does_not_grow_with_the_vocabulary(choice, way, sent):
    assert way_of([choice]) == way
    for vocabulary in (1024, 8192):
        logits = torch.randn(ROWS, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 9
        edges = [0, vocabulary // 2, vocabulary]
        drawn, bytes_sent = on_shards(
            logits, edges, lambda own, shards: captured([choice] * ROWS, own, shards)
        )
        assert bytes_sent == ROWS * sent
        assert torch.equal(drawn[0], draw(logits, POSITIONS, choice))


def test_whole_rows_are_there_for_what_may_ask_for_any_token():
    logits = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(4))
    for whole in on_shards(logits, [0, 256, 448, VOCABULARY], lambda own, shards: shards.whole(own))[0]:
        assert torch.equal(whole, logits)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_gpu_draws_from_shards_what_a_cpu_draws_from_the_whole(choice):
    logits = torch.randn(ROWS, 5000, generator=torch.Generator().manual_seed(6)) * 6
    logits[1, 77] = torch.nan
    logits[2] = -torch.inf
    logits[3, 4998] = logits[3, 2] = 60.0
    expected = draw(logits, POSITIONS, choice)

    def work(own, shards):
        where = torch.device("cuda", 0)
        columns = {name: torch.zeros(ROWS, dtype=dtype).numpy() for name, dtype in COLUMNS.items()}
        write_columns(columns, [choice] * ROWS, POSITIONS.tolist())
        rows = rows_of_columns({name: torch.from_numpy(column).to(where) for name, column in columns.items()})
        recorded = draw_captured(own.to(where), rows, way_of([choice]), shards).cpu()
        return recorded, draw_shards(own.to(where), POSITIONS.to(where), choice, shards).cpu()

    for edges in ([0, 2500, 5000], [0, 1700, 3400, 5000]):
        for recorded, eager in on_shards(logits, edges, work)[0]:
            assert torch.equal(eager, expected)
            assert torch.equal(recorded[recorded != UNCERTAIN], expected[recorded != UNCERTAIN])
