"""Refusals of the architecture layer."""

from intarsia.core.errors import IntarsiaError, ViolationsError


class ConfigError(ViolationsError):
    """A `config.json` that is incomplete, contradicts itself or asks for arithmetic we do not implement."""


class UnknownTensorError(IntarsiaError):
    """A tensor name that no rule of the architecture matches."""
