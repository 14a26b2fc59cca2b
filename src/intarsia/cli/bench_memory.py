"""intarsia bench memory: who owns the memory, predicted and measured."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import tyro

from intarsia.cli.options import CheckpointPath, Measurement
from intarsia.cli.output import emit_json, note
from intarsia.cli.progress import terminal_progress
from intarsia.cli.tables import show_table
from intarsia.core.config import CacheType, LoadSettings, check_integer

Name = Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")]


@dataclass(frozen=True, kw_only=True)
class BenchMemory(Measurement, LoadSettings):
    """Load a model and set every owner's bytes against what was predicted from headers."""

    path: CheckpointPath
    """Folder of a checkpoint, or `demo`."""
    manifest: Name = None
    """Recipe or manifest that converts it while it is loaded."""
    streams: int = 1
    """Streams whose caches are counted."""
    context: int = 4096
    """Tokens of each."""
    kv_cache_dtype: CacheType = "auto"
    """How cached latents are stored: auto in the type of activations, bfloat16, or fp8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("streams", self.streams, 1, 1024)
        check_integer("context", self.context, 1)

    def run(self) -> int:
        self.open_report()
        from intarsia.evidence.forms import open_form
        from intarsia.evidence.memory.ledger import measure_memory
        from intarsia.evidence.receipts import memory_receipt

        form = open_form(self.path, self.manifest)
        ledger = measure_memory(
            form,
            device=self.device,
            dtype=self.dtype,
            streams=self.streams,
            context=self.context,
            kv_cache_dtype=self.kv_cache_dtype,
            progress=terminal_progress(),
        )
        if self.json:
            emit_json(ledger.as_dict())
        else:
            rows = [
                (row.moment, row.owner, _bytes(row.predicted), _bytes(row.measured)) for row in ledger.owners
            ]
            show_table(form.label, ("moment", "owner", "predicted, bytes", "measured, bytes"), rows)
            for left_out in ledger.not_measured:
                note(left_out)
        self.keep(partial(memory_receipt, ledger), f"memory-{form.label}")
        return 0


def _bytes(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
