"""The page: one HTML file from receipts, with no script and nothing from elsewhere.

The same receipts always give the same bytes, so a page is checked by making it again from the receipts in it.
"""

from collections.abc import Mapping, Sequence

from intarsia.core.provenance import Code
from intarsia.core.receipt import Receipt
from intarsia.evidence.report.kernels import kernels_part
from intarsia.evidence.report.lines import Source
from intarsia.evidence.report.loads import loads_part
from intarsia.evidence.report.markup import Content, Markup, join, tag
from intarsia.evidence.report.memory import memory_part
from intarsia.evidence.report.other import other_part
from intarsia.evidence.report.quality import quality_part
from intarsia.evidence.report.speed import speed_part
from intarsia.evidence.report.steps import decode_part, prefill_part
from intarsia.evidence.report.style import sheet

PARTS = {
    "quality": quality_part,
    "speed": speed_part,
    "decode": decode_part,
    "prefill": prefill_part,
    "kernels": kernels_part,
    "loads": loads_part,
    "memory": memory_part,
}


def page(receipts: Mapping[str, Receipt]) -> bytes:
    """The page of receipts by file name."""
    sources = [Source(name, receipts[name], number) for number, name in enumerate(sorted(receipts))]
    parts: list[Content] = []
    known = [source for source in sources if _fits(source)]
    for kind, part in PARTS.items():
        chosen = [source for source in known if source.receipt.kind == kind]
        if chosen:
            parts.append(part(chosen))
    parts += [other_part(source) for source in sources if source not in known]
    body = tag(
        "body",
        tag("main", _head(sources), *parts, _not_run(sources), _receipts(sources)),
        tag(
            "footer",
            tag(
                "p",
                "Made by intarsia from the receipts above. ",
                tag("code", "intarsia receipt verify"),
                " checks it.",
            ),
        ),
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # Nothing may load or run, whatever a receipt says.
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'",
        ),
        tag("title", "Evidence"),
        tag("style", Markup(f"\n{sheet()}")),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n".encode()


def _fits(source: Source) -> bool:
    """True if there is a part for this kind of receipt, and the receipt has all that the part shows.

    One of an older or a newer version may not; its figures are then listed as they are.
    """
    part = PARTS.get(source.receipt.kind)
    try:
        return part is not None and bool(part([source]))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return False


def _head(sources: Sequence[Source]) -> Markup:
    code = sorted({_code(source.receipt.code) for source in sources})
    machines = sorted({_machine(source) for source in sources})
    days = sorted({source.receipt.created[:10] for source in sources})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return join(
        [
            tag("h1", "Evidence"),
            tag(
                "p",
                f"{len(sources)} receipts, {when}. intarsia ",
                join(code, "; "),
                f". {'; '.join(machines)}.",
                class_="soft",
            ),
            tag(
                "p",
                "Every figure that is underlined leads to its line in a receipt; others follow from those.",
                class_="soft",
            ),
        ]
    )


def _code(code: Code) -> str:
    """Version, commit where it is known, and the hash of the sources, which says more than either."""
    commit = "no commit" if code.commit is None else code.commit[:12]
    changed = {True: " with changes", False: "", None: "" if code.commit is None else ", changes unknown"}
    sources = f", sources {code.sources_sha256[:12]}" if code.sources_sha256 is not None else ""
    return f"{code.version} at {commit}{changed[code.changed]}{sources}"


def _machine(source: Source) -> str:
    found = source.receipt.machine
    accelerators = f", {', '.join(found.accelerators)}" if found.accelerators else ""
    return (
        f"{found.processor}, {found.cores} cores, {found.memory / 1e9:.0f} GB{accelerators}, {found.system}"
    )


def _not_run(sources: Sequence[Source]) -> Markup:
    notes: dict[str, list[str]] = {}
    for source in sources:
        for note in source.receipt.not_run:
            notes.setdefault(note, []).append(source.name)
    if not notes:
        return Markup("")
    items = [
        tag(
            "li",
            note,
            "" if len(names) == len(sources) else tag("span", f" ({', '.join(names)})", class_="soft"),
        )
        for note, names in notes.items()
    ]
    return join([tag("h2", "Not covered"), tag("ul", *items)])


def _receipts(sources: Sequence[Source]) -> Markup:
    parts = [
        tag(
            "details",
            tag(
                "summary",
                f"{source.name} ({source.receipt.kind}, {source.receipt.created}, {source.receipt.id[:16]})",
            ),
            source.listing(),
            id=source.key,
            data_receipt=source.name,
        )
        for source in sources
    ]
    return join([tag("h2", "Receipts"), *parts])
