"""Refusals of the network."""

from intarsia.core.errors import IntarsiaError, ViolationsError


class ModelWeightsError(ViolationsError):
    """The weights handed to a network are not exactly the ones it uses."""


class StateError(IntarsiaError):
    """A step that its stream's state cannot take."""
