"""What a piece of a prompt works in on a GPU: in the plan, and as linear attention allocates it."""

import pytest
import torch

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.kda import prompt
from intarsia.kernels.kda.group import ENTRY
from intarsia.planning.caches import linear_attention_bytes, prompt_bytes
from intarsia.planning.plan import plan
from tests.kernels.kda_cases import shapes


class Nothing:
    """Stands in the place of a kernel."""

    def __getitem__(self, grid):
        return lambda *args, **keywords: None


@pytest.fixture
def allocated(monkeypatch):
    """Launches a prompt of so many rows and heads without running it; the bytes of what it allocates, but
    for the table of its chunks.
    """
    pytest.importorskip("triton")
    from intarsia.kernels.kda import gluon_carry, gluon_terms, triton_norm, triton_parts

    for module, name in (
        (triton_parts, "plan_chunks"),
        (gluon_terms, "chunk_terms"),
        (gluon_carry, "carry_state"),
        (triton_norm, "norm_chunks"),
    ):
        monkeypatch.setattr(module, name, Nothing())

    def run(rows, heads):
        sizes = []
        empty = torch.empty

        def counted(*shape, **options):
            made = empty(*shape, **options)
            if shape[-1:] != (ENTRY,):
                sizes.append(made.nbytes)
            return made

        arguments = shapes(rows, 1, 0, heads=heads)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", counted)
            prompt.launch("gluon", *arguments)
        return sum(sizes)

    return run


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_plan_counts_what_the_kernels_of_a_long_prompt_allocate(allocated, real, real_config, ranks):
    config = Glm5NextConfig.from_checkpoint_config(real_config)
    planned = plan(real, ranks=ranks, device="cuda")
    for rank in planned.ranks:
        heads = config.linear_num_heads // ranks
        assert linear_attention_bytes(config, ranks, rank.rank) == allocated(8192, heads)
        assert rank.prompts == prompt_bytes(config, ranks, rank.rank)
        assert rank.total == rank.weights + rank.scratch + rank.caches.total + rank.prompts


def test_a_prompts_experts_take_the_most(real_config):
    config = Glm5NextConfig.from_checkpoint_config(real_config)
    assert prompt_bytes(config, 1, 0) == 8192 * (65_536 + 49_152 + 16_384 + 8 * (8_192 + 4_096 + 16_384))
    assert prompt_bytes(config, 2, 0) < prompt_bytes(config, 1, 0)


def test_a_short_prompt_allocates_less(allocated):
    assert allocated(64, 64) < allocated(8192, 64) == allocated(4096, 64)


def test_nothing_is_planned_for_a_cpu(real):
    assert all(rank.prompts == 0 for rank in plan(real, ranks=2).ranks)
