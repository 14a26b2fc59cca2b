"""The Triton kernels against the references without a GPU: values in its interpreter, code by compiling."""

import importlib.util

import pytest
import torch

from intarsia import formats
from intarsia.formats.stored import Stored
from intarsia.kernels.router import Routing
from tests.kernels.interpreted import cases
from tests.kernels.interpreting import interpreted

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

# Float32 sums in another order; bfloat16 rounds what lies between two products, and the output of KDA; 16
# bits of each number are left in products of parts.
TOLERANCES = {"float32": 2e-6, "bfloat16": 1e-2, "exact": 5e-5}


@pytest.fixture(scope="module")
def errors():
    """Every case's error, from one process."""
    return interpreted("tests.kernels.interpreted")


@pytest.mark.parametrize("case", cases())
def test_a_kernel_gives_what_the_reference_gives(errors, case):
    tolerance = 2e-6 if case.startswith(("linear", "ranges")) else TOLERANCES[case.split()[-1]]
    assert errors[case] <= tolerance


@pytest.fixture
def compiled(monkeypatch):
    """Puts compilers in the places of kernels: names of a module -> what their launches would run on
    sm_90.
    """
    from tests.kernels.ahead_of_time import Compiled

    def replace(module, *names):
        stand_ins = [Compiled(getattr(module, name)) for name in names]
        for name, stand_in in zip(names, stand_ins, strict=True):
            monkeypatch.setattr(module, name, stand_in)
        return stand_ins

    return replace


def empty(name: str, *shape: int) -> Stored:
    """A stored weight without memory."""
    specs = formats.get(name).layout(shape)
    tensors = {key: torch.empty(spec.shape, dtype=spec.dtype, device="meta") for key, spec in specs.items()}
    return Stored(name, tensors, shape)


def numbers(*shape: int, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("rows", [16, 64, 144])
@pytest.mark.parametrize("name", ["MXFP8", "FP8_PB_WO", "BF16"])
def test_the_product_compiles_to_tensor_core_code_without_spills(compiled, name, rows):
    from intarsia.kernels.linear import launch, triton_linear
    from tests.kernels.ahead_of_time import usage

    kernel, add = compiled(triton_linear, "linear_rows", "add_ranges")
    launch.launch(numbers(rows, 8192), empty(name, 4096, 8192), torch.float32)
    used = usage(kernel.built[0])
    assert used["stack"] == 0
    assert used.get("HGMMA", 0) + used.get("HMMA", 0) > 0
    assert len(add.built) == (rows <= 64)


@pytest.mark.parametrize("name", ["NVFP4", "MXFP8"])
def test_the_experts_compile_to_tensor_core_code_without_spills(compiled, name):
    from intarsia.kernels.experts import launch, triton_experts
    from tests.kernels.ahead_of_time import usage

    kernels = compiled(triton_experts, "group_pairs", "expert_rows", "combine")
    routing = Routing(numbers(16, 8, dtype=torch.int32), numbers(16, 8, dtype=torch.float32))
    gate_up, down = empty(name, 288, 4096, 4096), empty(name, 288, 4096, 2048)
    launch.launch(numbers(16, 4096), routing, gate_up, down, 10.0)
    assert [len(kernel.built) for kernel in kernels] == [1, 2, 1]
    for product in kernels[1].built:
        used = usage(product)
        assert used["stack"] == 0
        assert used.get("HGMMA", 0) + used.get("HMMA", 0) > 0
