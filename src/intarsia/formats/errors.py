"""What the formats layer refuses: one type a failure kind."""

from collections.abc import Sequence

from intarsia.core.errors import IntarsiaError, Violation


class FormatError(IntarsiaError):
    """The root of every refusal by a number format."""


class UnknownFormatError(FormatError):
    """A format name that this project does not know."""


class LayoutError(FormatError):
    """Tensors that are missing, extra, or of another dtype or shape than the format stores."""

    def __init__(self, where: str, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        found = "; ".join(f"{item.where} {item.found} instead of {item.expected}" for item in self.violations)
        super().__init__(where, found=found)


class UnencodableError(FormatError):
    """A weight that the format cannot hold: NaN, infinity, or a shape its blocks do not divide."""


class CutError(FormatError):
    """A cut that is empty, out of range, or would split a stored entry."""


class CsfError(FormatError):
    """Compressed scales that do not follow their codec's rules."""
