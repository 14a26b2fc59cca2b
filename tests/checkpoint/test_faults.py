"""Every fault of the damage tool, done to a copy of a converted checkpoint, is named by an audit."""

import pytest

from intarsia.checkpoint import audit
from tests.checkpoint import faults_files, faults_values
from tests.checkpoint.faults import FAULTS, NotApplicableError, damage
from tests.checkpoint.local import fp4_local

assert faults_files, faults_values  # importing them registers their faults


@pytest.fixture(scope="module", params=["csf_32x2_v1", "nvfp4_slab", None], ids=str)
def whole(request, tmp_path_factory):
    return fp4_local(tmp_path_factory.mktemp("whole") / "checkpoint", request.param), request.param


def test_the_whole_checkpoint_is_clean(whole):
    folder, _ = whole
    report = audit(folder, values=True)
    assert report.violations == ()
    assert {item.rule for item in report.notes} <= {"fused-globals-differ"}
    assert report.modules["NVFP4"] == report.modules["W4A16_NVFP4"] == 9


def test_every_fault_is_named(whole, tmp_path):
    folder, codec = whole
    unnamed, done = {}, 0
    for number, name in enumerate(FAULTS):
        try:
            needle = damage(folder, tmp_path / str(number), name, seed=number)
        except NotApplicableError:
            continue
        done += 1
        report = audit(tmp_path / str(number), values=True)
        if not any(needle in str(violation) for violation in report.violations):
            unnamed[name] = (needle, [str(violation) for violation in report.violations][:3])
    assert unnamed == {}
    assert done >= (55 if codec else 45)
    assert audit(folder, values=True).clean, "the damage tool changed the original"
