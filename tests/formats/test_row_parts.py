"""Stacked halves of FP8_PB_WO that end inside a block: each keeps scale blocks of its own."""

import pytest
import torch

from intarsia import formats
from intarsia.formats import CutError, LayoutError

KIND = formats.get("FP8_PB_WO")


def halves(rows=384, columns=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    # Magnitudes that differ from block to block, so that a wrong block is a wrong number.
    scale = torch.arange(1, 5).repeat_interleave(128)[:rows, None] * 1.0
    return [KIND.encode(torch.randn(rows, columns, generator=generator) * scale) for _ in range(2)]


@pytest.mark.parametrize("rows", [range(64, 128), range(64, 256), range(128, 320), range(64), range(64, 320)])
@pytest.mark.parametrize("columns", [range(200), range(64, 200), range(100, 110)])
def test_a_stack_of_cuts_decodes_to_its_cuts(rows, columns):
    cuts = [KIND.cut(half, rows, columns) for half in halves()]
    stack = KIND.join(cuts)
    assert stack.row_parts == (1 if not cuts[0].origin[0] and len(rows) % 128 == 0 else 2)
    expected = torch.cat([KIND.decode(cut) for cut in cuts])
    assert torch.equal(KIND.decode(stack), expected)
    again = KIND.stored(stack.tensors, origin=stack.origin, row_parts=stack.row_parts)
    assert torch.equal(KIND.decode(again), expected)
    assert KIND.check(stack) == []


def test_rows_of_a_stack_are_cut_inside_a_part():
    cuts = [KIND.cut(half, range(64, 256), range(200)) for half in halves()]
    stack, values = KIND.join(cuts), torch.cat([KIND.decode(cut) for cut in cuts])
    part = KIND.cut(stack, range(200, 300), range(8, 72))
    assert (part.row_parts, part.origin) == (1, (72, 8))
    assert torch.equal(KIND.decode(part), values[200:300, 8:72])
    assert torch.equal(KIND.gather(stack, torch.tensor([0, 191, 192, 383])), values[[0, 191, 192, 383]])
    with pytest.raises(CutError, match="inside one part"):
        KIND.cut(stack, range(190, 194), range(200))


def test_parts_that_are_not_cut_alike_are_refused():
    first, second = halves()
    with pytest.raises(LayoutError, match="cut alike"):
        KIND.join([KIND.cut(first, range(64, 128), range(200)), KIND.cut(second, range(32, 96), range(200))])


def test_a_stack_needs_as_many_scale_rows_as_its_parts():
    stack = KIND.join([KIND.cut(half, range(64, 320), range(200)) for half in halves()])
    with pytest.raises(LayoutError):
        KIND.stored(stack.tensors, origin=stack.origin)
    with pytest.raises(LayoutError, match="equal parts"):
        KIND.stored(stack.tensors, origin=stack.origin, row_parts=5)
