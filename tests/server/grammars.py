"""Grammars of the demo's vocabulary, and whether a text follows one."""

import torch

from tests.server.serving import VOCAB

ENDS = (0, 7, 9)
WORDS = VOCAB // 32
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def tokens(compiler, text):
    return compiler.tokenizer.tokenize_str(text, parse_special=True)


def mask(grammar):
    words = torch.full((WORDS,), -1, dtype=torch.int32)
    grammar.fill(words)
    bits = words.numpy().view("uint8")
    return {token for token in range(VOCAB) if bits[token // 8] >> token % 8 & 1}


def follows(compiler, source, text):
    """True if the grammar takes all of the text and then an end, and no end inside it where that is wrong."""
    (grammar,) = compiler.compile(source)
    for token in tokens(compiler, text):
        allowed = token in mask(grammar)
        assert grammar.accept(token) is allowed
        if not allowed:
            return False
    ends = bool(mask(grammar) & set(ENDS))
    assert grammar.accept(ENDS[1]) is ends
    return ends
