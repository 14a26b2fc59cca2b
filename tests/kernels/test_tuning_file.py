"""The file of tuned configurations: round trips, what is refused and why, and readers of any bytes."""

import json
import os

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intarsia.kernels import tuning
from intarsia.kernels.tuning import Site, cache, configurations, described
from intarsia.kernels.tuning.document import Document, Entry, Refused, decode, encode, sealed
from intarsia.kernels.tuning.errors import TuningError
from intarsia.kernels.tuning.identity import KERNELS, device_identity, sources_sha256, versions
from intarsia.kernels.tuning.use import AUTO, NONE_THERE, OFF, look, use
from tests.kernels.test_tuning import SITES

CPU = torch.device("cpu")


def entry(site: Site, place: int = 1, us: float = 1.5, default_us: float = 2.5) -> Entry:
    candidates = configurations(site.operation).candidates(site)
    return Entry(
        operation=site.operation,
        formats=list(site.formats),
        shape=list(site.shape),
        rows=site.rows,
        configuration=described(candidates[place % len(candidates)]),
        us=us,
        spread_us=0.1,
        default_us=default_us,
        default_spread_us=0.2,
        repeats=7,
    )


def document(entries, **changes) -> Document:
    fields = {
        "schema": "intarsia.tuning/1",
        "created": "2026-11-30T08:00:00Z",
        "device": device_identity(CPU),
        "versions": versions(),
        "kernels_sha256": sources_sha256(),
        "entries": list(entries),
    }
    return Document(**(fields | changes))


def rules(error: TuningError) -> list[str]:
    return [violation.rule for violation in error.violations]


times = st.floats(0.001, 1e6, allow_nan=False)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, len(SITES) - 1), st.integers(0, 40), times, times), unique_by=lambda x: x[0]
    )
)
def test_what_is_written_is_what_is_read(tmp_path, picked):
    entries = [entry(SITES[which], place, us, default) for which, place, us, default in picked]
    path = cache.write(document(entries), tmp_path / "folder" / "tuned.json")
    table = cache.read(path, CPU)
    assert table.created == "2026-11-30T08:00:00Z"
    assert len(table.found) == len(entries)
    for one in entries:
        site = Site(one.operation, tuple(one.formats), tuple(one.shape), one.rows)
        assert described(table.found[site].configuration) == one.configuration
        assert (table.found[site].us, table.found[site].default_us) == (one.us, one.default_us)
    assert os.listdir(path.parent) == ["tuned.json"]


def test_a_file_is_replaced_at_once_and_a_failure_leaves_the_old_one(tmp_path, monkeypatch):
    path = cache.write(document([entry(SITES[0])]), tmp_path / "tuned.json")
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(cache.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        cache.write(document([]), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["tuned.json"]


def test_all_reasons_are_told_at_once(tmp_path):
    other = msgspec.structs.replace(device_identity(CPU), name="another", multiprocessors=7)
    older = msgspec.structs.replace(versions(), torch="1.0", triton="2.0")
    linear, experts = SITES[0], SITES[5]
    unknown = msgspec.structs.replace(entry(linear), operation="speed")
    rows = msgspec.structs.replace(entry(linear), rows=9)
    shape = msgspec.structs.replace(entry(linear), shape=[64, 100, 1])
    wrong = msgspec.structs.replace(entry(experts), configuration={"form": "Few", "pairs": 9})
    made = document(
        [unknown, rows, shape, wrong, entry(linear), entry(linear, 2)],
        device=other,
        versions=older,
        kernels_sha256="0" * 64,
    )
    with pytest.raises(TuningError) as caught:
        cache.read(cache.write(made, tmp_path / "tuned.json"), CPU)
    assert sorted(rules(caught.value)) == sorted(
        [
            *["other-device"] * 2,
            *["other-version"] * 2,
            "other-kernels",
            "unknown-operation",
            "unknown-rows",
            "unknown-shape",
            "no-candidate",
            "twice",
        ]
    )
    assert "another" in str(caught.value)


def test_true_is_not_one(tmp_path):
    entries = [entry(site, 0) for site in SITES if site.operation == "experts"]
    one = next(one for one in entries if any(isinstance(value, bool) for value in one.configuration.values()))
    swapped = {
        name: int(value) if isinstance(value, bool) else value for name, value in one.configuration.items()
    }
    made = document([msgspec.structs.replace(one, configuration=swapped)])
    with pytest.raises(TuningError) as caught:
        cache.read(cache.write(made, tmp_path / "tuned.json"), CPU)
    assert rules(caught.value) == ["no-candidate"]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda d: d["entries"][0].update(us=0.5), "checksum"),
        (lambda d: d.update(checksum=""), "checksum"),
        (lambda d: d.update(schema="intarsia.tuning/2"), "form"),
        (lambda d: d.update(more=1), "form"),
        (lambda d: d.pop("device"), "form"),
        (lambda d: d["entries"][0].update(rows=8.5), "form"),
        (lambda d: d["entries"][0].update(rows=True), "form"),
        (lambda d: d["entries"][0].update(configuration={"warps": {"a": 1}}), "form"),
    ],
)
def test_a_changed_file_is_refused(tmp_path, change, rule):
    values = json.loads(encode(sealed(document([entry(SITES[0])]))))
    change(values)
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps(values))
    with pytest.raises(TuningError) as caught:
        cache.read(path, CPU)
    assert rules(caught.value) == [rule]


GOOD = encode(sealed(document([entry(SITES[0]), entry(SITES[5])])))


places = st.integers(0, len(GOOD) - 1)
mutated = st.builds(lambda at, byte: GOOD[:at] + bytes([byte]) + GOOD[at + 1 :], places, st.integers(0, 255))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | mutated | st.builds(lambda at: GOOD[:at], places))
def test_any_bytes_are_read_or_refused(data):
    try:
        found = decode(data, "bytes")
    except TuningError:
        return
    # Spaces between values are no part of the checksum; everything else is.
    assert encode(found) == GOOD


def deeper(inner):
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)


simple = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=8)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["operation", "formats", "shape", "rows", "configuration"]),
    st.recursive(simple, deeper, max_leaves=8),
)
def test_no_entry_gets_past_the_checks_but_one_of_the_candidates(tmp_path_factory, field, value):
    """Whatever a sealed file says: an entry that is read is a candidate of a site that can be."""
    values = json.loads(GOOD) | {"checksum": ""}
    values["entries"][1][field] = value
    try:
        made = msgspec.convert(values, Document)
    except msgspec.ValidationError:
        return
    path = cache.write(made, tmp_path_factory.mktemp("tuned") / "tuned.json")
    try:
        table = cache.read(path, CPU)
    except TuningError:
        return
    for site, found in table.found.items():
        assert found.configuration in configurations(site.operation).candidates(site)


def test_the_sources_hash_sees_names_and_bytes(tmp_path):
    (tmp_path / "a.py").write_text("one")
    first = sources_sha256(tmp_path)
    sources_sha256.cache_clear()
    (tmp_path / "a.py").write_text("two")
    second = sources_sha256(tmp_path)
    sources_sha256.cache_clear()
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, sources_sha256(tmp_path)}) == 3
    assert (KERNELS / "linear" / "plan.py").exists()


def test_where_the_file_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_path(CPU) == tmp_path / "intarsia" / "tuning" / "cpu.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.default_path(CPU) == tmp_path / "home" / ".cache" / "intarsia" / "tuning" / "cpu.json"


@pytest.fixture
def as_cuda(monkeypatch, tmp_path):
    """A device that counts as CUDA, with the CPU's identity, and its own cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "device_identity", lambda device: device_identity(CPU))
    device = torch.device("cuda", 0)
    yield device
    tuning.install(device, None)


def test_settings_say_which_file_is_used(as_cuda):
    path = cache.default_path(as_cuda)
    assert look(AUTO, as_cuda).reason == NONE_THERE
    assert not look(AUTO, as_cuda).refused
    cache.write(document([entry(SITES[0])]), path)
    assert use(AUTO, as_cuda).table.found
    assert tuning.found(SITES[0], as_cuda).us == 1.5
    assert "1 sites" in str(use(str(path), as_cuda))
    assert use(OFF, as_cuda).table is None
    assert tuning.installed(as_cuda) is None


def test_a_file_that_does_not_hold_leaves_the_defaults_and_a_named_one_is_an_error(as_cuda):
    path = cache.write(document([], kernels_sha256="0" * 64), cache.default_path(as_cuda))
    state = use(AUTO, as_cuda)
    assert state.refused
    assert "other-kernels" in str(state)
    assert tuning.installed(as_cuda) is None
    with pytest.raises(TuningError):
        use(str(path), as_cuda)
    with pytest.raises(TuningError) as caught:
        use("nowhere.json", CPU)
    assert rules(caught.value) == ["unreadable"]


def test_on_a_cpu_nothing_is_looked_for():
    assert "not cuda" in look(AUTO, CPU).reason
    assert not look(AUTO, CPU).refused


def test_refused_candidates_are_kept(tmp_path):
    site = SITES[0]
    line = Refused(site.operation, list(site.formats), list(site.shape), 8, {"form": "Few"}, "other bits")
    path = cache.write(
        document([], refused=[line], clocks={"before": {"clock_mhz": 1980}}), tmp_path / "t.json"
    )
    assert decode(path.read_bytes(), "file").refused == [line]


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, "/dev/zero", tmp_path, "zero\0byte", tmp_path / ("long" * 200)):
        with pytest.raises(TuningError) as caught:
            look(str(path), CPU)
        assert rules(caught.value) == ["unreadable"]


def test_a_cache_folder_that_cannot_be_searched_leaves_the_defaults(as_cuda, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("long" * 200)))
    state = use(AUTO, as_cuda)
    assert state.refused
    assert "unreadable" in str(state)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert "no home folder" in str(use(AUTO, as_cuda))


def test_a_place_that_takes_no_file_is_known_before(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for path in (file / "below.json", tmp_path, tmp_path / ("long" * 200), "zero\0byte"):
        with pytest.raises(TuningError) as caught:
            cache.check_writable(path)
        assert rules(caught.value) == ["unwritable"]
    cache.check_writable(tmp_path / "new" / "tuned.json")
    assert not list((tmp_path / "new").iterdir())
