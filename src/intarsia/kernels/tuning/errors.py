"""What is wrong with a file of tuned configurations, or with what is asked of them."""

from intarsia.core.errors import IntarsiaError, ViolationsError


class TuningError(ViolationsError):
    """A file of tuned configurations that cannot be used here, every reason together."""


class OperationError(IntarsiaError):
    """An operation whose kernels have no configurations to choose from."""
