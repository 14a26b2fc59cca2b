"""What is on disk: index, headers, ranged reads, quantization metadata, atomic writing."""

from intarsia.checkpoint.auditing import AuditReport, audit
from intarsia.checkpoint.checkpoint import Checkpoint, Shard, open_checkpoint
from intarsia.checkpoint.entry import TensorEntry
from intarsia.checkpoint.module import Module
from intarsia.checkpoint.paths import locate
from intarsia.checkpoint.reader import Reader
from intarsia.checkpoint.recipes import Quantization, Recipe
from intarsia.checkpoint.resolution import Resolution, modules, resolve
from intarsia.checkpoint.summary import Summary, summarize
from intarsia.checkpoint.write import write_checkpoint

__all__ = [
    "AuditReport",
    "Checkpoint",
    "Module",
    "Quantization",
    "Reader",
    "Recipe",
    "Resolution",
    "Shard",
    "Summary",
    "TensorEntry",
    "audit",
    "locate",
    "modules",
    "open_checkpoint",
    "resolve",
    "summarize",
    "write_checkpoint",
]
