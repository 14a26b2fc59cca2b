"""What is on disk: index, headers, ranged reads, quantization metadata, atomic writing."""

from intarsia.checkpoint.checkpoint import Checkpoint, Shard, open_checkpoint
from intarsia.checkpoint.header import TensorEntry
from intarsia.checkpoint.paths import locate
from intarsia.checkpoint.reader import Reader
from intarsia.checkpoint.write import write_checkpoint

__all__ = ["Checkpoint", "Reader", "Shard", "TensorEntry", "locate", "open_checkpoint", "write_checkpoint"]
