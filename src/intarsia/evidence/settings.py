"""Settings as a receipt keeps them: those of the measurement, not of the command that asked for it."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def kept(settings: object, kind: type) -> dict[str, Any]:
    """The fields of `kind` as JSON values, whatever else a class made of it has."""
    found = {item.name: getattr(settings, item.name) for item in fields(kind)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def read_kept(settings: Mapping[str, Any], kind: type[T]) -> T:
    """Settings of `kind` from a receipt. One that is older lacks the newest, which then have their defaults.

    Raises UsageError for values that cannot be.
    """
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    values = {name: value for name, value in settings.items() if name in names}
    return kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    )
