"""The experts' product of one row without a GPU: what it computes on a stand-in for Gluon, and its code."""

import importlib.util

import pytest
import torch

from intarsia.kernels.experts import candidates, packed_launch, plan
from intarsia.kernels.experts.plan import Few, Single
from intarsia.kernels.tuning import Site
from tests.kernels.interpreting import printed
from tests.kernels.test_experts_without_gpu import compiled, in_tiles, numbers, routing, small_scales

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

__all__ = ["compiled"]
INNER, WIDTH = 1024, 4096


def test_every_address_order_and_step_is_right():
    errors = printed("-m", "tests.kernels.single_row_interpreted")
    assert len(errors) == 5
    assert max(errors.values()) < 0.01, errors
    assert max(error for case, error in errors.items() if case.startswith("down")) < 1e-5, errors


def test_one_row_of_a_share_takes_its_own_kernel_and_little_code(compiled):
    from intarsia.kernels.experts import gluon_single, triton_experts, triton_grouping
    from tests.kernels.ahead_of_time import usage

    (product,) = compiled(gluon_single, "one_row")
    compiled(triton_experts, "combine")
    compiled(triton_grouping, "arrange_rows")
    stacks = in_tiles(2 * INNER, WIDTH, 2, True), in_tiles(WIDTH, INNER, 1, False)
    packed_launch.launch(numbers(1, WIDTH), routing(1), *stacks, 10.0)
    assert len(product.built) == 2
    for built in product.built:
        report = usage(built)
        assert report["stack"] == 0
        assert report["registers"] <= 160  # so that something else fits beside two programs
        assert report["HMMA"] == 8 * {8192: 8, 2048: 4}[report["shared"]]  # the loop is there once
        assert report["BAR"] == 1


def test_compressed_scales_and_more_rows_take_the_kernel_of_blocks():
    assert isinstance(plan.form_of(1, 8, 288, INNER), Single)
    assert isinstance(plan.form_of(1, 8, 288, 2 * INNER), Single)
    assert isinstance(plan.form_of(1, 8, 288, INNER, True), Few)
    assert isinstance(plan.form_of(2, 16, 288, INNER), Few)
    assert isinstance(plan.form_of(1, 65, 288, INNER), Few)
    plain = in_tiles(2 * INNER, WIDTH, 2, True), in_tiles(WIDTH, INNER, 1, False)
    small = small_scales(plain[0]), small_scales(plain[1])
    chosen = torch.empty(1, 8, dtype=torch.int32, device="meta")
    assert isinstance(packed_launch.Run(chosen, *plain, 10.0).form, Single)
    assert isinstance(packed_launch.Run(chosen, *small, 10.0).form, Few)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("scales", ["expanded", "compressed"])
def test_only_one_row_with_expanded_scales_may_be_tuned_to_it(rows, scales):
    site = Site("experts", ("NVFP4", scales), (288, INNER, WIDTH, 8), rows)
    found = [isinstance(one, Single) for one in candidates.candidates(site)]
    assert any(found) == (rows == 1 and scales == "expanded")
