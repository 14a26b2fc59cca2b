"""The refusals of the checkpoint layer, one type a kind of failure."""

from collections.abc import Sequence

from intarsia.core.errors import IntarsiaError, Violation, ViolationsError


class CheckpointError(IntarsiaError):
    """Something on disk cannot be used as a checkpoint."""


class NotACheckpointError(CheckpointError):
    """The path holds no model: not a folder, or a folder without weights."""


class PathError(CheckpointError):
    """A file name that leaves the folder, or a file that is not a regular one."""


class TensorMissingError(CheckpointError):
    """A tensor was asked for that the checkpoint lacks."""


class RangeError(CheckpointError):
    """A byte or row range outside its tensor, or a destination of another size."""


class DtypeError(CheckpointError):
    """A stored type that cannot become a tensor, or a tensor that cannot be stored."""


class TruncatedError(CheckpointError):
    """A file ended before the bytes its header promises."""


class ChangedError(CheckpointError):
    """A shard is no longer the file whose header was read."""


class ReadError(CheckpointError):
    """The operating system refused to open or read a file."""


class RecipeError(CheckpointError):
    """Quantization metadata that cannot be meant."""


class ContainerError(CheckpointError):
    """A CSF container whose documents, shards and receipts do not fit each other, or cannot be made."""


class TargetExistsError(CheckpointError):
    """Writing would replace something."""


class WriteError(CheckpointError):
    """Tensors or names that cannot be written, or a file system that refused."""


class DiskSpaceError(WriteError):
    """The disk has less room than the shard needs."""


class InvalidCheckpointError(CheckpointError, ViolationsError):
    """Everything that is wrong with a checkpoint, together (`.violations`)."""

    def __init__(self, where: str, violations: Sequence[Violation]) -> None:
        ViolationsError.__init__(self, where, violations)
