"""intarsia plan: what a load takes on every rank, before anything is read."""

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from intarsia.cli.options import CheckpointPath
from intarsia.cli.output import emit_json, gigabytes, printable
from intarsia.cli.sizes import size_in_bytes
from intarsia.cli.tables import show_table
from intarsia.core.config import CacheType
from intarsia.core.errors import told_once
from intarsia.core.words import counted
from intarsia.families.glm5_next.inventory import TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from intarsia.planning.report import Plan, RankPlan
    from intarsia.planning.table import SharedWeights
    from intarsia.planning.wire import Wire


MOST_TOLD = 4
"""Ranks whose sizes are told one by one."""


@dataclass(frozen=True, kw_only=True)
class PlanCommand:
    """Say what loading a checkpoint takes on every rank, from headers alone; every violation at once.

    Exit code 1 when something stands against the load.
    """

    path: CheckpointPath
    """Folder of a checkpoint, or `demo`; its shards may be sparse or end behind their headers."""
    manifest: Annotated[str | None, tyro.conf.arg(metavar="MANIFEST")] = None
    """A manifest, or its folder: what is converted while loading."""
    tp: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Ranks that share the weights."""
    device_memory: Annotated[str | None, tyro.conf.arg(metavar="SIZE")] = None
    """Memory of one device, such as 139GiB; the largest window that fits is found."""
    context: Annotated[int | None, tyro.conf.arg(metavar="TOKENS")] = None
    """Tokens of a stream to count caches for."""
    streams: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Streams at once."""
    kv_cache_dtype: CacheType = "auto"
    """How latents are cached: fp8 takes half of the bfloat16 that is counted otherwise."""
    budget: Annotated[str | None, tyro.conf.arg(metavar="SIZE")] = None
    """Most working memory while converting."""
    device: str = "cpu"
    """Kind of device that loads: cpu or cuda."""
    ring: bool = False
    """Ranks reach only their neighbours: count what the lines of a ring carry."""
    compressed_scales: bool = False
    """Count scales that the manifest compresses as kept so, with scratch to expand them."""
    receipt: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the plan to this file, which must not exist."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from intarsia import api
        from intarsia.core.receipt import write
        from intarsia.loading.receipts import plan_receipt

        options: dict[str, Any] = {  # as the function and the receipt call them
            "ranks": self.tp,
            "device_memory": _size("--device-memory", self.device_memory),
            "context": self.context,
            "streams": self.streams,
            "kv_cache_dtype": self.kv_cache_dtype,
            "budget": _size("--budget", self.budget),
            "device": self.device,
            "compressed_scales": self.compressed_scales,
            "ring": self.ring,
        }
        checkpoint = api.open_checkpoint(self.path, strict=False, data_required=False)
        manifest = api.read_manifest(self.manifest) if self.manifest is not None else None
        result = api.plan(checkpoint, manifest, **options)
        if self.receipt is not None:
            write(plan_receipt(result, options, checkpoint), self.receipt)
        if self.json:
            emit_json(result.as_dict())
        else:
            show(result)
        return 0 if result.ok else 1


def _size(option: str, text: str | None) -> int | None:
    return size_in_bytes(option, text) if text is not None else None


def show(result: "Plan") -> None:
    """Formats and ranks as tables, then what stands against it."""
    if result.targets:
        targets = ", ".join(f"{count} {name}" for name, count in result.targets.items())
        modules = ", ".join(f"{count} {name}" for name, count in result.modules.items())
        print(f"converted: {targets}\nas fused modules: {modules}")
    kinds = list(dict.fromkeys(key for rank in result.ranks for key in rank.table))
    columns = ["section", "format", *(f"rank {rank.rank}" for rank in result.ranks)]
    rows = [
        [section, kind, *(_bytes(rank.part(section, kind).total) for rank in result.ranks)]
        for section, kind in kinds
    ]
    show_table("weights, bytes", columns, rows)
    columns = ["rank", "weights", "scratch", "caches", "prompts", "total", "load peak", "at"]
    show_table("ranks, bytes", columns, [_row(rank) for rank in result.ranks])
    if result.cuts:
        show_shares(result)
    if result.wire is not None:
        show_wire(result.wire)
    print(f"exported: {result.exported_tensors:,} tensors, {_bytes(result.exported_bytes)} bytes")
    for name in result.unused:
        print(f"not loaded: {name}")
    if result.window is not None and result.device_memory is not None and result.reserve is not None:
        free = min(result.reserve, result.device_memory)
        print(
            f"largest window: {result.window:,} tokens for {counted(result.streams, 'stream')} in "
            f"{gigabytes(result.device_memory)}, of which {gigabytes(free)} stay free"
        )
    for line in told_once(result.violations):
        print(printable(line))


def show_shares(result: "Plan") -> None:
    """Every weight's share, unequal ones first."""
    columns = ["weights", "", "format", "shape", "cut", "on each rank", "bytes of one"]
    held = [row for row in result.shares if row.refused is None]
    for title, kind in _SHARES.items():
        counts: dict[tuple[object, ...], int] = {}
        for row in held:
            if (row.equal, row.axis is None) == kind:
                cells = tuple(_share(row))
                counts[cells] = counts.get(cells, 0) + len(row.names)
        if counts:
            show_table(title, columns, [[cells[0], count, *cells[1:]] for cells, count in counts.items()])
    refused = [row for row in result.shares if row.refused is not None]
    if refused:
        told = [[(share := _share(row))[0], len(row.names), *share[1:4], row.refused] for row in refused]
        show_table("cannot be cut, in no sum", [*columns[:5], "why"], told)
    unequal = [row for row in held if not row.equal]
    for rank in result.ranks:
        part = sum(row.nbytes[rank.rank] * len(row.names) for row in unequal)
        print(f"rank {rank.rank}: {_bytes(rank.weights)} bytes, {_bytes(part)} of them in unequal shares")


def show_wire(wire: "Wire") -> None:
    """What ranks send, and what it costs over known links."""
    from intarsia.planning.wire import LINKS

    rows = [
        [
            link.name,
            f"{link.latency * 1e6:g}",
            f"{link.bandwidth / 1e9:g}",
            f"{wire.step.seconds(link, wire.hops) * 1e3:.2f}",
            f"{wire.prompt.seconds(link, wire.hops):.3f}",
            "measured" if link.measured else "assumed",
        ]
        for link in LINKS
    ]
    prompt = f"prompt of {wire.prompt_tokens:,}, s"
    columns = ["link", "us an exchange", "GB/s each way", "step, ms", prompt, ""]
    show_table("time ranks wait for each other, nothing overlapped", columns, rows)
    streams = counted(wire.streams, "stream")
    where = "the busiest line of the ring carries" if wire.ring else "each rank sends"
    print(
        f"on the wire: {where} {_bytes(round(wire.token_bytes))} bytes a token "
        f"({_bytes(wire.step.bytes)} in {wire.step.exchanges} exchanges a step of {streams}), "
        f"{_bytes(wire.prompt.bytes)} bytes in {_bytes(wire.prompt.exchanges)} exchanges a prompt; "
        f"{_bytes(wire.sampled.bytes - wire.step.bytes)} bytes more a step that draws from nuclei, and "
        f"{_bytes(wire.whole_row)} a row whose reply may ask for any token's logit"
    )


def _row(rank: "RankPlan") -> list[object]:
    caches = rank.caches.total
    figures = (rank.weights, rank.scratch, caches, rank.prompts, rank.total, rank.peak)
    return [rank.rank, *map(_bytes, figures), rank.peak_at]


_SHARES = {
    "unequal shares": (False, False),
    "equal shares": (True, False),
    "on every rank": (True, True),
}


def _share(row: "SharedWeights") -> list[object]:
    name = row.pattern.removeprefix(TEXT).removeprefix("layers.*.").removesuffix(".weight")
    shape = "x".join(map(str, row.shape))
    sizes = _runs([len(part.entries) for part in row.held])
    axis = "" if row.axis is None else "columns" if row.axis else "rows"
    cut = f"{axis}, by {row.unit}" if axis else ""
    return [name, row.format, shape, cut, sizes if axis else "", _runs(row.nbytes)]


def _runs(sizes: "Sequence[int]") -> str:
    """Sizes of all ranks in their order, equal ones told once."""
    runs = [(size, len(list(same))) for size, same in groupby(sizes)]
    if len(runs) == 1:
        return f"{sizes[0]:,}"
    if len(sizes) <= MOST_TOLD:
        return " / ".join(f"{size:,}" for size in sizes)
    return ", ".join(f"{size:,}" if count == 1 else f"{count} x {size:,}" for size, count in runs)


def _bytes(count: int) -> str:
    return f"{count:,}"
