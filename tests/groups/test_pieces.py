"""Sums begun piece by piece, each beside the next one's computing: the same bits as all rows together."""

import pytest
import torch

from intarsia import api
from intarsia.checkpoint import open_checkpoint
from intarsia.groups.group import SINGLE
from intarsia.kernels.rows import Piece, rows_of
from tests.groups.threads import on_ranks


@pytest.mark.parametrize(
    ("rows", "size", "expected"),
    [
        (100, None, [(0, 100)]),
        (127, 64, [(0, 127)]),
        (128, 64, [(0, 64), (64, 128)]),
        (200, 64, [(0, 64), (64, 128), (128, 192), (192, 200)]),
    ],
)
def test_rows_are_cut_only_where_there_is_more_than_one_piece(rows, size, expected):
    def work(group):
        group.piece_rows = size
        return [(part.start, part.stop) for part in group.cut(rows)]

    assert on_ranks(2, work) == [expected] * 2
    assert SINGLE.cut(rows) == [slice(0, rows)]


def test_a_prompt_in_pieces_has_the_bits_of_the_whole():
    checkpoint = open_checkpoint("demo")
    tokens = [(7 * place) % 4000 + 50 for place in range(150)]

    def work(group):
        model = api.load(checkpoint, group=group)
        whole = model.logits(tokens)
        begun = []
        begin_sum = group.begin_sum
        group.begin_sum = lambda partial, rows: begun.append(len(partial)) or begin_sum(partial, rows)
        group.piece_rows = 48
        pieces = model.logits(tokens)
        assert set(begun) == {48, 16}
        return whole, pieces

    for whole, pieces in on_ranks(2, work):
        assert torch.equal(whole, pieces)


def test_a_part_of_the_rows_knows_how_many_are_real():
    table = torch.zeros(2, 4, dtype=torch.int32)
    rows = rows_of([Piece(0, 5, [1, 2, 3], True), Piece(1, 64, list(range(20)), False)], table)
    parts = [rows.part(slice(0, 16)), rows.part(slice(16, 32))]
    assert [part.real for part in parts] == [16, 7]
    assert torch.equal(torch.cat([part.streams for part in parts]), rows.streams)
    assert parts[1].positions.tolist()[:7] == list(range(77, 84))
    assert parts[1].padding.tolist() == [False] * 7 + [True] * 9
