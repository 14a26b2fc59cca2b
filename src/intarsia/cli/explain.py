"""--explain: how every weight would run, in place of running it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from intarsia.cli.output import emit_json
from intarsia.cli.tables import show_table
from intarsia.core.config import DataType, ScaleForm

if TYPE_CHECKING:
    from intarsia.models.glm5_next.configured import ConfigurationRow
    from intarsia.models.glm5_next.explain import WeightRow
    from intarsia.selection.manifest import Manifest

_LAYER = re.compile(r"(?<=layers\.)\d+")

CONFIGURED = ("operation", "formats", "shape", "rows", "configuration", "from")


def explain(
    path: str,
    device: str,
    dtype: DataType,
    *,
    manifest: "Manifest | None" = None,
    tuning: str = "auto",
    expert_scales: ScaleForm = "expanded",
    json: bool = False,
) -> int:
    """Print how every weight is stored, runs and why, and which configuration each kernel that has a choice
    runs with, from headers alone; layers that agree share a line.
    """
    from intarsia import api

    rows = api.explain(path, device, dtype, manifest=manifest)
    reason = api.explain_steps(path, device, dtype, manifest=manifest)
    state, configured = api.explain_configurations(
        path, device, dtype, manifest=manifest, tuning=tuning, expert_scales=expert_scales
    )
    if json:
        emit_json(
            {
                "weights": [asdict(row) for row in rows],
                "eager_because": reason,
                "tuning": state,
                "configurations": [asdict(row) | {"origin": row.origin} for row in configured],
            }
        )
        return 0
    columns = ("weight", "stored -> run", "operation", "kernel", "why")
    show_table(f"{len(rows)} weights on {device}, activations in {dtype}", columns, folded(rows))
    if configured:
        show_table("configurations of kernels", CONFIGURED, [_configured(row) for row in configured])
    print(state)
    print(f"steps of written tokens: {f'eager, since {reason}' if reason else 'captured as CUDA graphs'}")
    return 0


def _configured(row: "ConfigurationRow") -> tuple[str, ...]:
    rows = f"{row.least:,} and more" if row.most is None else f"{row.least:,} to {row.most:,}"
    return (
        row.operation,
        "+".join(row.formats),
        ", ".join(map(str, row.shape)),
        rows,
        values_in_words(row.configuration),
        row.origin,
    )


def values_in_words(configuration: Mapping[str, object]) -> str:
    """`Few warps 4 tile 64`: its form, then the fields."""
    fields = [f"{name} {value}" for name, value in configuration.items() if name != "form"]
    return " ".join([str(configuration.get("form", "")), *fields])


def folded(rows: Iterable["WeightRow"]) -> list[tuple[str, ...]]:
    """Cells of the rows, those that differ in the layer's number alone as one."""
    layers: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        found = _LAYER.search(row.module)
        form = row.run if row.stored == row.run else f"{row.stored} -> {row.run}"
        key = (_LAYER.sub("*", row.module), form, row.operation, row.kernel, row.reason)
        layers.setdefault(key, []).extend([int(found[0])] if found else [])
    return [(name.replace("*", ranges(numbers), 1), *rest) for (name, *rest), numbers in layers.items()]


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers in words: `3`, or `{0-2,4,6-8}`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    words = ["-".join(str(end) for end in run) for run in runs]
    return "{" + ",".join(words) + "}" if len(numbers) > 1 else "".join(words)
