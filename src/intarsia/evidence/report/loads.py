"""The page's part on loads: seconds against what reading and carrying take, and where they go."""

from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.evidence.report.bars import Bar, bar_list
from intarsia.evidence.report.lines import Source
from intarsia.evidence.report.markup import Content, Markup, join, key, table, tag
from intarsia.evidence.report.numbers import MISSING, number, size

FORMS = ("load", "median, s", "GB/s", "floor, s", "to the floor")
PEAK = "highest, of the plan's peak"
SAMPLES = (
    "load",
    "seconds",
    "headers",
    "load",
    "check, plan",
    "copy, scatter",
    "wait for bytes",
    "device after",
    "peak",
)
PHASES = ("headers", "load", "planning", "sending", "waiting", "device_after")


def loads_part(sources: Sequence[Source]) -> Markup:
    """All receipts of `bench load` and `bench convert`."""
    return join([tag("h2", "Loads"), *(_one(source) for source in sources)])


def _one(source: Source) -> Markup:
    results, settings = source.value("results"), source.value("settings")
    floors, samples = results["floors"], list(enumerate(results["samples"]))
    # A process on a CPU keeps what an earlier load has freed: its peaks say nothing of the plan's.
    with_peaks = not settings["device"].startswith("cpu")
    groups, rows = [], []
    for form in results["forms"]:
        of_form = [sample for _, sample in samples if sample["form"] == form]
        median, floor = results["median_seconds"][form], _floor(floors, of_form[0]["read_bytes"])
        shown = f"{number(median)} s (floor {number(floor)})"
        groups.append((form, [Bar(median, shown, limit=floor)]))
        peak = max(sample["measured_peak"] / sample["planned_peak"] for sample in of_form)
        rows.append(
            [
                form,
                source.link(number(median), "results", "median_seconds", form),
                number(of_form[0]["read_bytes"] / median / 1e9),
                number(floor),
                f"{median / floor:.2f}",
                *([f"{peak:.3f}"] if with_peaks else []),
            ]
        )
    caption = ("Median seconds of a load; ", key("l", "floor"), ".")
    plot = tag("figure", bar_list("Seconds of a load against its floor", groups), tag("figcaption", *caption))
    return tag(
        "section",
        tag("h3", " and ".join(results["forms"])),
        tag("p", *_machine_and_floor(source), ".", class_="soft"),
        tag("div", plot, class_="plots"),
        table((*FORMS, PEAK) if with_peaks else FORMS, rows),
        table(SAMPLES, [_sample(source, *one) for one in samples], caption="Every load, seconds by phase"),
    )


def _machine_and_floor(source: Source) -> list[Content]:
    results = source.value("results")
    machine, floors = results["machine"], results["floors"]
    told: list[Content] = [
        f"{machine.get('gpu', {}).get('name', machine['processor'])}, files ",
        "read from the disk" if source.value("settings")["cold"] else "as the system has cached them",
        ". The floor: reading with ",
        source.link(number(floors["threads"]), "results", "floors", "threads"),
        " threads at ",
        source.link(f"{size(floors['reading'])}/s", "results", "floors", "reading"),
    ]
    if floors["copying"] is not None:
        copying = source.link(f"{size(floors['copying'])}/s", "results", "floors", "copying")
        told += [", beside copies to the device at ", copying]
    return told


def _floor(floors: Mapping[str, Any], nbytes: int) -> float:
    """Reading and copying go on at the same time."""
    rates: list[float | None] = [floors["reading"], floors["copying"]]
    return max(nbytes / rate for rate in rates if rate is not None)


def _sample(source: Source, index: int, sample: Mapping[str, Any]) -> list[Content]:
    at = ("results", "samples", index)
    seconds = [
        MISSING if sample[name] is None else source.link(number(sample[name]), *at, name) for name in PHASES
    ]
    return [
        sample["form"],
        source.link(number(sample["seconds"]), *at, "seconds"),
        *seconds,
        source.link(size(sample["measured_peak"]), *at, "measured_peak"),
    ]
