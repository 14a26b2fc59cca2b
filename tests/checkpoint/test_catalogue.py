"""The catalogue of published faults is covered: every number has a test, or a stated reason for none."""

import re
from pathlib import Path

from tests.checkpoint import test_catalogue_files, test_catalogue_metadata

DOCS = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def test_every_number_has_a_test_or_a_reason():
    tested = set()
    for name in [*vars(test_catalogue_files), *vars(test_catalogue_metadata)]:
        if match := re.match(r"test_((?:\d\d_(?:and_)?)+)", name):
            tested |= {int(number) for number in re.findall(r"\d\d", match[1])}
    reasons = {int(n) for n in re.findall(r"^\| (\d+) \| not reading", DOCS.read_text(), re.MULTILINE)}
    assert not tested & reasons
    assert tested | reasons == set(range(1, 57))
