"""What is wrong with a file of tuned configurations."""

from intarsia.core.errors import ViolationsError


class TuningError(ViolationsError):
    """A file of tuned configurations that cannot be used here, every reason together."""
