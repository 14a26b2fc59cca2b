"""What goes wrong in the choice of kernels."""

from intarsia.core.errors import IntarsiaError


class KernelError(IntarsiaError):
    """A kernel was forced that cannot run the case, or that does not exist."""
