"""The demo's byte-level BPE tokenizer, chat template and generation settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .corpus import documents
from .settings import SPECIAL_TOKENS, TOKEN_ID, NetworkSettings

# Words with their leading space, single digits, runs of signs, line breaks, blanks.
PIECES = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TRAINING_DOCUMENTS = 60_000


def train_tokenizer(vocab_size: int, count: int = TRAINING_DOCUMENTS) -> Tokenizer:
    """Learns merges from the first `count` training documents; special tokens take the first ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    plain = (piece for text in documents(0, count) for piece in special.split(text))
    tokenizer.train_from_iterator(plain, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"the text gives {tokenizer.get_vocab_size()} tokens, not {vocab_size}")
    if any(tokenizer.token_to_id(t) != i for t, i in TOKEN_ID.items()):
        raise ValueError("special tokens did not take the first ids")
    return tokenizer


def write_tokenizer(out: Path, settings: NetworkSettings) -> None:
    """Trains and writes tokenizer.json, tokenizer_config.json and generation_config.json."""
    out.mkdir(parents=True, exist_ok=True)
    train_tokenizer(settings.vocab_size).save(str(out / "tokenizer.json"))
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    added = {str(i): {"content": t, **flags, "special": True} for t, i in TOKEN_ID.items()}
    tokenizer_config = {
        "added_tokens_decoder": added,
        "additional_special_tokens": list(SPECIAL_TOKENS),
        "clean_up_tokenization_spaces": False,
        "do_lower_case": False,
        "eos_token": "<|endoftext|>",
        "extra_special_tokens": {},
        "model_max_length": settings.max_position_embeddings,
        "pad_token": "<|endoftext|>",
        "padding_side": "left",
        "remove_space": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    generation = {
        "_from_model_config": True,
        "do_sample": True,
        "eos_token_id": list(settings.eos_token_ids),
        "pad_token_id": settings.eos_token_ids[0],
        "temperature": 0.7,
        "top_p": 0.95,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=1) + "\n")
    (out / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    (out / "config.json").write_text(json.dumps(settings.config(), indent=1) + "\n")


def load_tokenizer(folder: Path) -> Tokenizer:
    """Reads the committed tokenizer, whose ids are fixed."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
