"""Experts in tiles: the gate's own formula against the packing, and every fault of it seen."""

import pytest
import torch

from intarsia.evidence.loader_gate import run_gate
from intarsia.formats.stored import Stored
from intarsia.gate import tiles
from intarsia.gate.tile_mutations import tile_mutations
from intarsia.kernels.experts.packed import compressed, pack
from intarsia.loading.export import convert
from tests.gate.conftest import UNEVEN
from tests.synthetic import tiny_config, write_source

SIZES = UNEVEN | {"moe_intermediate_size": 384}


def stack(gated, rows=512, columns=256):
    generator = torch.Generator().manual_seed(0)
    experts = 2
    codes = torch.randint(256, (experts, rows, columns // 2), dtype=torch.uint8, generator=generator)
    scales = torch.randint(60, 82, (experts, rows, columns // 16), dtype=torch.uint8, generator=generator)
    tensors = {
        "weight": codes,
        "weight_scale": scales.view(torch.float8_e4m3fn),
        "weight_scale_2": torch.rand((experts, 2) if gated else (experts,), generator=generator),
    }
    return Stored("NVFP4", tensors, (experts, rows, columns))


@pytest.mark.parametrize(
    ("gated", "rows", "columns"), [(True, 512, 256), (False, 512, 256), (False, 128, 128)]
)
def test_the_loops_lay_out_what_packing_does(gated, rows, columns):
    stored = stack(gated, rows, columns)
    codes, scales = stored["weight"].clone().numpy(), stored["weight_scale"].view(torch.uint8).clone().numpy()
    packed = pack(stored, gated=gated)
    assert tiles.laid_out_codes(codes, gated).tobytes() == packed.codes.numpy().tobytes()
    assert tiles.laid_out_scales(scales, gated).tobytes() == packed.scales.numpy().tobytes()
    small = compressed(pack(stack(gated, rows, columns), gated=gated))
    assert len(small.scales.records) > 1
    assert tiles.laid_out_scales(scales, gated).tobytes() == tiles.held_scales(small).tobytes()


def test_every_row_and_every_bit_has_a_place_of_its_own():
    for gated in (True, False):
        assert len({tiles.stands_at(row, 512, gated) for row in range(512)}) == 512
    assert {tiles.bit_goes_to(code, bit) for code in range(8) for bit in range(4)} == set(range(32))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiles")
    write_source(folder / "bf16", tiny_config(**SIZES))
    return convert(folder / "bf16", folder / "out", recipe="fp4-local")


@pytest.mark.parametrize("scales", ["expanded", "resident"])
def test_experts_in_tiles_are_compared_and_their_faults_seen(wide, scales):
    # A share of 128 of 384 rows fits into tiles; at two ranks 192 does not, and stays as stored.
    report = run_gate(wide, [1, 2, 3], layers=[3, 8], mutate=True, tiles=True, expert_scales=scales)
    assert report.ok
    found = {finding.ranks for finding in report.findings if "in tiles" in finding.cell.form}
    assert found == {1, 3}
    other = {"expanded": ("base", "compressed", "exceptions"), "resident": ("scales", "two scales")}[scales]
    expected = [name for name in tile_mutations() if not name.removeprefix("tiles: ").startswith(other)]
    assert all(report.seen[name] for name in expected)


def test_without_a_gpu_nothing_is_in_tiles_unless_asked_for(wide):
    report = run_gate(wide, [1], layers=[3])
    assert not any("tiles" in finding.cell.form for finding in report.findings)
