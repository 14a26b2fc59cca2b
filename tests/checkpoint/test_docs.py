"""Every rule that the code can report is explained in docs/checkpoints.md."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULE = re.compile(r'(?:\.add\(|Issue\(|Violation\(|_all\(\s*entry,)\s*"([a-z0-9-]+)"')


def test_every_rule_is_explained():
    text = (ROOT / "docs" / "checkpoints.md").read_text()
    rules = {
        rule
        for path in (ROOT / "src" / "intarsia" / "checkpoint").glob("*.py")
        for rule in RULE.findall(path.read_text())
    }
    assert len(rules) > 60
    explained = {rule for rule in rules if f"`{rule}`" in text or (rule.startswith("container-"))}
    assert rules - explained == set()
