"""Refusals about text: tokenizers, chat templates, messages."""

from intarsia.core.errors import IntarsiaError


class TokenizerError(IntarsiaError):
    """The checkpoint's tokenizer is missing, malformed or of a kind that is not read."""


class TemplateError(IntarsiaError):
    """The checkpoint's chat template is missing, fails, or takes too much time or memory."""


class MessageRefusedError(TemplateError):
    """The chat template itself refused the messages, in its author's words."""


class TextConfigError(IntarsiaError):
    """generation_config.json, tokenizer_config.json or the token ids of config.json make no sense."""
