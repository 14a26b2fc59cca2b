"""Which kernel is chosen, why others are not, and that none of it needs triton or a GPU."""

import subprocess
import sys

import pytest
import torch

from intarsia.kernels import choice
from intarsia.kernels.choice import Case
from intarsia.kernels.errors import KernelError
from intarsia.kernels.experts import launch as experts
from intarsia.kernels.kda import recurrent as kda
from intarsia.kernels.linear import gluon as linear_in_registers
from intarsia.kernels.linear import launch as linear

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def a_hopper(monkeypatch):
    monkeypatch.setattr(choice, "no_triton", lambda device: "")
    monkeypatch.setattr(choice, "no_gluon", lambda device: "")


@pytest.mark.parametrize("operation", ["linear", "experts", "kda_step"])
def test_on_a_cpu_the_reference_runs_and_triton_says_why_not(operation):
    formats = {"linear": ("MXFP8",), "experts": ("NVFP4", "NVFP4"), "kda_step": ()}[operation]
    shape = {"linear": (64, 64), "experts": (8, 64, 64), "kda_step": (4, 64, 4)}[operation]
    rows = choice.explain(Case(operation, formats, torch.float32, CPU, shape))
    assert [(row.candidate, row.chosen) for row in rows[-2:]] == [("triton", False), ("reference", True)]
    assert all(row.refusal == "the device is cpu, not cuda" for row in rows[:-1])
    assert rows[-1].refusal == ""


@pytest.mark.parametrize(
    ("refuse", "case", "part"),
    [
        (linear.refuse, Case("linear", ("NVFP4",), torch.bfloat16, GPU, (64, 64)), "no kernel for NVFP4"),
        (linear.refuse, Case("linear", ("MXFP8",), torch.float16, GPU, (64, 64)), "rows of float16"),
        (linear.refuse, Case("linear", ("FP8_PB_WO",), torch.float32, GPU, (64, 65)), "65 columns"),
        (
            linear_in_registers.refuse,
            Case("linear", ("F32",), torch.bfloat16, GPU, (64, 128)),
            "no kernel for F32",
        ),
        (
            linear_in_registers.refuse,
            Case("linear", ("BF16",), torch.float32, GPU, (64, 128)),
            "rows of float32",
        ),
        (
            linear_in_registers.refuse,
            Case("linear", ("MXFP8",), torch.bfloat16, GPU, (64, 192)),
            "192 columns",
        ),
        (
            linear_in_registers.refuse,
            Case("linear", ("MXFP8",), torch.bfloat16, GPU, (64, 128), "rows with gaps"),
            "with gaps",
        ),
        (experts.refuse, Case("experts", ("NVFP4", "MXFP8"), torch.float32, GPU, (8, 64, 64)), "one format"),
        (
            experts.refuse,
            Case("experts", ("FP8", "FP8"), torch.float32, GPU, (8, 64, 64)),
            "no kernel for FP8",
        ),
        (experts.refuse, Case("experts", ("NVFP4",) * 2, torch.float32, GPU, (8, 48, 64)), "multiples of 64"),
        (kda.refuse, Case("kda_step", (), torch.float32, GPU, (4, 96, 4)), "heads of 96"),
    ],
)
def test_a_refusal_says_what_is_needed(refuse, case, part):
    assert part in refuse(case)


def test_the_first_kernel_that_can_run_is_chosen(a_hopper):
    case = Case("linear", ("MXFP8",), torch.bfloat16, GPU, (64, 64))
    assert choice.choose(case) == "triton"
    with choice.forced("reference"):
        assert choice.choose(case) == "reference"
        assert not choice.explain(case)[0].chosen
    assert choice.choose(case) == "triton"
    whole = Case("linear", ("MXFP8",), torch.bfloat16, GPU, (64, 128))
    assert choice.choose(whole) == "gluon"


def test_a_forced_kernel_that_cannot_run_is_refused():
    case = Case("linear", ("MXFP8",), torch.bfloat16, CPU, (64, 64))
    with choice.forced("triton"), pytest.raises(KernelError, match="not cuda"):
        choice.choose(case)
    with choice.forced("another"), pytest.raises(KernelError, match="another"):
        choice.choose(case)


def test_the_ranges_of_k_cover_it_and_are_a_function_of_the_matrix():
    for rows in (64, 128, 4096, 16384, 154880):
        for columns in (32, 96, 1536, 4096, 8192, 16384):
            for tile in (32, 64, 128):
                ranges = linear.ranges_of(rows, columns, tile)
                assert ranges.count * ranges.steps * tile >= columns
                assert ranges.count == 1 or columns // ranges.count >= 512
    assert linear.ranges_of(4096, 8192, 128) == linear.Ranges(4, 16)
    assert linear.ranges_of(24576, 4096, 128) == linear.Ranges(1, 32)


def test_importing_and_running_on_a_cpu_never_imports_triton():
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from intarsia.kernels.linear import linear\n"
        "import intarsia.kernels.experts, intarsia.kernels.kda\n"
        "assert linear(torch.ones(16, 32), torch.ones(4, 32)).sum() == 16 * 4 * 32\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
