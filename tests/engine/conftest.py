"""A small byte-level tokenizer with GLM's control tokens, trained when first needed."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

CONTROL = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
MARKUP = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)
TEXT = [
    "the cat sat on the mat and the dog sat on the cat. ",
    "naïve café, 猫と犬 🐈🐕 — “quoted”\n\n",
    "x = 1 + 1\n",
] * 3


def train() -> bytes:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=list(CONTROL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens(list(MARKUP))
    tokenizer.add_tokens(["two words é 猫"])  # an added token whose text is not written in the byte alphabet
    return tokenizer.to_str().encode()


@pytest.fixture(scope="session")
def tokenizer_json() -> bytes:
    return train()


@pytest.fixture(scope="session")
def tokenizer_document(tokenizer_json):
    return json.loads(tokenizer_json)


@pytest.fixture(scope="session")
def tokenizer(tokenizer_json):
    from intarsia.engine.text import Tokenizer

    return Tokenizer(tokenizer_json)
