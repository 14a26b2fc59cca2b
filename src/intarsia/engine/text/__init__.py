"""Text: the checkpoint's tokenizer and chat template, and replies as they stream."""

from intarsia.engine.text.assets import TextAssets
from intarsia.engine.text.reasoning import ReasoningSplitter, begins_thinking
from intarsia.engine.text.reply import ReplyText
from intarsia.engine.text.template import ChatTemplate
from intarsia.engine.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "ReasoningSplitter", "ReplyText", "TextAssets", "Tokenizer", "begins_thinking"]
