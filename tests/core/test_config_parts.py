"""Settings of one kind out of those of another."""

from dataclasses import dataclass, fields

from intarsia.cli.check import Check
from intarsia.cli.generate import Generate
from intarsia.core.config import EngineSettings, part_of
from intarsia.evidence.quality.settings import QualitySettings


@dataclass(frozen=True)
class Few:
    """Some settings, and one that has nothing to do with them."""

    tp: int = 2
    threads: int = 3
    other: str = "x"


def test_fields_of_the_kind_are_taken_and_the_rest_has_its_defaults():
    made = part_of(Few(), EngineSettings, drafts=1)
    assert made == EngineSettings(tp=2, threads=3, drafts=1)


def test_no_setting_of_a_command_is_lost_on_the_way():
    """A field that comes later is passed on without anybody naming it."""
    changed = {
        "dtype": "bfloat16",
        "threads": 2,
        "window": 99,
        "drafts": 2,
        "kv_cache_dtype": "fp8",
        "expert_scales": "resident",
        "tuning": "off",
        "tp": 2,
        "rank": 1,
        "master": "::1",
        "master_port": 5,
        "ring": "a,b",
        "rank_timeout": 9.0,
        "device": "cuda:0",
    }
    assert set(changed) == {field.name for field in fields(EngineSettings)}
    assert Generate(path="demo", prompt="", **changed).engine_settings() == EngineSettings(**changed)
    ranks = {name: changed[name] for name in ("dtype", "threads", "tp", "rank", "master", "rank_timeout")}
    assert QualitySettings(**ranks).rank_settings() == EngineSettings(**ranks, drafts=0)
    assert part_of(Check(path="demo", check="shared", **ranks), EngineSettings) == EngineSettings(**ranks)
