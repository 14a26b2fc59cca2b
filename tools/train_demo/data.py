"""Token streams made by many processes, the same whatever their number."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .corpus import document, sentences
from .settings import TOKEN_ID
from .tokenizer import load_tokenizer

END = TOKEN_ID["<|endoftext|>"]
JOB_DOCUMENTS = 2000
HELD_FILE_BYTES = 200_000
SEPARATOR = "<|endoftext|>\n"


@dataclass
class Stream:
    """Documents as one run of tokens, each followed by <|endoftext|>; `starts` are their first tokens."""

    tokens: np.ndarray  # uint16
    starts: np.ndarray  # int64

    @staticmethod
    def of(parts: Iterable[list[int]]) -> Stream:
        flat: list[int] = []
        starts = []
        for ids in parts:
            starts.append(len(flat))
            flat += ids
            flat.append(END)
        return Stream(np.array(flat, dtype=np.uint16), np.array(starts, dtype=np.int64))


@dataclass
class Corpus:
    """The training stream and what the split check counted in it."""

    stream: Stream
    documents: int
    sentences: int
    shared_sentences: int
    characters: int


_job_tokenizer: Path
_job_held: frozenset[str]


def _prepare(folder: Path, held: frozenset[str]) -> None:
    global _job_tokenizer, _job_held
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _job_tokenizer, _job_held = folder, held


def _job(number: int) -> tuple[Stream, int, int, int]:
    tokenizer = load_tokenizer(_job_tokenizer)
    texts = [document(i) for i in range(number * JOB_DOCUMENTS, (number + 1) * JOB_DOCUMENTS)]
    said = [s for text in texts for s in sentences(text)]
    shared = sum(s in _job_held for s in said)
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return Stream.of(e.ids for e in encoded), len(said), shared, sum(map(len, texts))


def generate(folder: Path, jobs: int, workers: int, held: list[str]) -> Corpus:
    """Writes `jobs` x 2,000 training documents and counts the sentences they share with the `held` texts."""
    held_sentences = frozenset(s for text in held for s in sentences(text))
    _prepare(folder, held_sentences)
    if workers > 1:
        context = multiprocessing.get_context("fork")
        with context.Pool(workers, _prepare, (folder, held_sentences)) as pool:
            results = pool.map(_job, range(jobs), chunksize=1)
    else:
        results = [_job(i) for i in range(jobs)]
    offsets = np.cumsum([0] + [len(r[0].tokens) for r in results])
    stream = Stream(
        np.concatenate([r[0].tokens for r in results]),
        np.concatenate([r[0].starts + o for r, o in zip(results, offsets, strict=False)]),
    )
    counts = [sum(r[k] for r in results) for k in (1, 2, 3)]
    return Corpus(stream, jobs * JOB_DOCUMENTS, *counts)


def held_out_documents(count: int) -> list[str]:
    """The first `count` held-out documents."""
    return [document(i, held=True) for i in range(count)]


def held_out_file(texts: list[str]) -> str:
    """As many held-out documents as fit the shipped file, each followed by <|endoftext|> and a line break."""
    out, size = [], 0
    for text in texts:
        size += len((text + SEPARATOR).encode())
        if size > HELD_FILE_BYTES:
            break
        out.append(text + SEPARATOR)
    return "".join(out)


def encode(folder: Path, texts: list[str]) -> Stream:
    """Texts as one stream."""
    encoded = load_tokenizer(folder).encode_batch_fast(texts, add_special_tokens=False)
    return Stream.of(e.ids for e in encoded)


def windows(stream: Stream, length: int, limit: int) -> np.ndarray:
    """Up to `limit` starts of windows of `length` tokens that begin at documents and do not overlap."""
    out: list[int] = []
    free = 0
    for start in stream.starts:
        if start >= free and start + length <= len(stream.tokens):
            out.append(int(start))
            free = int(start) + length
            if len(out) == limit:
                break
    return np.array(out, dtype=np.int64)
