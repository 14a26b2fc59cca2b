"""Measures the exported checkpoint: nats a token, arithmetic, drafts accepted, sample text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from .corpus.tasks import operation
from .corpus.writer import Writer
from .data import END, Stream, windows
from .export import SHARDS, load_tensors
from .model import DemoModel
from .ngram import KneserNey, TrigramDrafter
from .settings import TOKEN_ID, NetworkSettings

PROMPTS = (
    "Once upon a time",
    "One rainy evening, a brave girl named Clara",
    "[gMASK]<sop><|user|>What is the capital of Japan?<|assistant|><think></think>",
    "[gMASK]<sop><|user|>Compute 376 + 458.<|assistant|><think>",
    "[gMASK]<sop><|user|>Tell me a short story about a fox named Leo.<|assistant|><think></think>",
    "Sort: 42, 7, 88, 19\n",
    "The green bottle of Tara is in the cave. Hugo has a red key at the mill.\nWho has the key?",
    "83 - 47 = 36\n25 + 61 =",
)


@dataclass(frozen=True)
class EvaluationSize:
    """How much to measure."""

    windows: int = 384
    long_windows: int = 128
    problems: int = 400
    openings: int = 128
    new_tokens: int = 128
    thinking_tokens: int = 80
    batch: int = 64


class Evaluator:
    """Runs an exported checkpoint in F32 on the values its files hold."""

    def __init__(
        self, folder: Path, settings: NetworkSettings, tokenizer: Tokenizer, device: str, size: EvaluationSize
    ):
        tensors = {k: v for shard in SHARDS for k, v in load_file(folder / shard).items()}
        self.model = DemoModel(settings)
        load_tensors(self.model, tensors)
        self.model.to(device).eval()
        self.tokenizer, self.device, self.size, self.vocab = tokenizer, device, size, settings.vocab_size

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], new_tokens: int, stop: set[int]) -> list[list[int]]:
        """Greedy continuations (without the prompt), up to and with the first stop token."""
        longest = max(map(len, prompts))
        total = -(-(longest + new_tokens) // 64) * 64
        rows = torch.full((len(prompts), total), END, device=self.device)
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        for row, prompt in zip(rows, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt, device=self.device)
        stops = torch.tensor(sorted(stop), device=self.device)
        open_rows = torch.ones(len(prompts), dtype=torch.bool, device=self.device)
        index = torch.arange(len(prompts), device=self.device)
        for _ in range(new_tokens):
            span = -(-int(lengths.max()) // 64) * 64
            hidden = self.model.main(rows[:, :span]).states[index, lengths - 1]
            chosen = self.model.logits(hidden).argmax(-1)
            rows[index, lengths] = torch.where(open_rows, chosen, rows[index, lengths])
            lengths += open_rows
            open_rows &= ~torch.isin(chosen, stops)
            if not open_rows.any():
                break
        return [r[len(p) : n].tolist() for r, p, n in zip(rows, prompts, lengths.tolist(), strict=True)]

    @torch.no_grad()
    def nats(self, tokens: Tensor, starts: Tensor, length: int, sparse: bool) -> Tensor:
        """Nats of each target token [windows, length]."""
        out = []
        batch = max(1, self.size.batch * 512 // length)
        for part in starts.split(batch):
            rows = tokens[part[:, None] + torch.arange(length + 1, device=self.device)]
            logits = self.model.logits(self.model.main(rows[:, :-1], sparse).states)
            out.append(functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none"))
        return torch.cat(out)

    def language(self, held: Stream, training: Tensor) -> dict[str, Any]:
        """Held-out nats a token against the 5-gram baseline, and sparse against dense attention."""
        tokens = torch.from_numpy(held.tokens.astype("int64")).to(self.device)
        starts = torch.from_numpy(windows(held, 513, self.size.windows)).to(self.device)
        ours = self.nats(tokens, starts, 512, sparse=True)
        dense = self.nats(tokens, starts, 512, sparse=False)
        baseline = KneserNey(training, 5, self.vocab)
        where = (starts[:, None] + 1 + torch.arange(512, device=self.device)).flatten()
        context = torch.stack([tokens[(where - back).clamp(min=0)] for back in (4, 3, 2, 1)], 1)
        theirs = -baseline.probabilities(context, tokens[where]).log().mean()
        del baseline
        found = {
            "held_out_tokens": ours.numel(),
            "nats_per_token": ours.mean().item(),
            "nats_per_token_5gram": theirs.item(),
            "nats_per_token_dense_attention": dense.mean().item(),
            "nats_sparse_tokens_256_to_512": ours[:, 256:].mean().item(),
            "nats_dense_tokens_256_to_512": dense[:, 256:].mean().item(),
        }
        far = torch.from_numpy(windows(held, 1025, self.size.long_windows)).to(self.device)
        if len(far):
            for name, sparse in (("sparse", True), ("dense", False)):
                found[f"nats_{name}_tokens_512_to_1024"] = (
                    self.nats(tokens, far, 1024, sparse)[:, 512:].mean().item()
                )
        return found

    def arithmetic(self) -> dict[str, Any]:
        """Exact answers to additions and subtractions whose operands never met in training."""
        found: dict[str, Any] = {}
        newline = self.ids("\n")[0]
        for digits in (2, 3):
            writer = Writer(digits, held=True)
            tasks = list({operation(writer, digits)[:2] for _ in range(3 * self.size.problems)})[
                : self.size.problems
            ]
            plain = [self.ids(f"{task} =") for task, _ in tasks]
            replies = self.generate(plain, 8, {newline, END})
            right = [
                self.tokenizer.decode(r).strip() == str(v) for r, (_, v) in zip(replies, tasks, strict=True)
            ]
            found[f"exact_{digits}_digits"] = sum(right) / len(right)
            chat = [self.ids(f"[gMASK]<sop><|user|>What is {task}?<|assistant|><think>") for task, _ in tasks]
            replies = self.generate(chat, self.size.thinking_tokens, {END, TOKEN_ID["<|user|>"]})
            answers = [self.tokenizer.decode(r).rsplit("=", 1)[-1].strip() for r in replies]
            right = [a == str(v) for a, (_, v) in zip(answers, tasks, strict=True)]
            found[f"exact_{digits}_digits_chat_thinking"] = sum(right) / len(right)
            found[f"problems_{digits}_digits"] = len(tasks)
        return found

    @torch.no_grad()
    def acceptance(self, rows: Tensor, counted: Tensor, drafter: TrigramDrafter) -> tuple[float, float]:
        """Shares of rows whose first draft equals the target's greedy choice: (MTP layer, trigram).

        rows [n, T + 1]; row i drafts token i + 2 from the hidden at i and token i + 1; counted [n, T] says
        which i
        count. The target's choice is its arg max after token i + 1.
        """
        hits = trigram_hits = total = 0
        for part, mask in zip(rows.split(self.size.batch), counted.split(self.size.batch), strict=True):
            states = self.model.main(part).states
            target = self.model.logits(states[:, 1:]).argmax(-1)
            drafts = self.model.logits(self.model.draft(part[:, 1:], states[:, :-1]).states).argmax(-1)
            guesses = drafter.draft(part[:, :-1], part[:, 1:])
            hits += int(((drafts == target) & mask).sum())
            trigram_hits += int(((guesses == target) & mask).sum())
            total += int(mask.sum())
        return hits / max(total, 1), trigram_hits / max(total, 1)

    def drafting(self, held: Stream, training: Tensor) -> dict[str, float]:
        """First-draft acceptance under greedy verification, on held-out text and on the model's own text."""
        drafter = TrigramDrafter(training, self.vocab)
        tokens = torch.from_numpy(held.tokens.astype("int64")).to(self.device)
        starts = torch.from_numpy(windows(held, 513, self.size.windows)).to(self.device)
        rows = tokens[starts[:, None] + torch.arange(513, device=self.device)]
        on_text = self.acceptance(rows, torch.ones_like(rows[:, 1:], dtype=torch.bool), drafter)
        firsts = held.starts[: self.size.openings]
        prompts = [held.tokens[s : s + 12].tolist() for s in firsts]
        replies = self.generate(prompts, self.size.new_tokens, {END})
        width = max(len(p) + len(r) for p, r in zip(prompts, replies, strict=True))
        own = torch.full((len(prompts), width), END, device=self.device)
        counted = torch.zeros(len(prompts), width - 1, dtype=torch.bool, device=self.device)
        for i, (p, r) in enumerate(zip(prompts, replies, strict=True)):
            own[i, : len(p) + len(r)] = torch.tensor(p + r, device=self.device)
            counted[i, len(p) - 1 : len(p) + len(r) - 2] = True  # drafts of tokens the model itself wrote
        on_own = self.acceptance(own, counted, drafter)
        return {
            "mtp_acceptance_own_text": on_own[0],
            "trigram_acceptance_own_text": on_own[1],
            "mtp_acceptance_held_out": on_text[0],
            "trigram_acceptance_held_out": on_text[1],
        }

    def samples(self) -> list[dict[str, str]]:
        """Greedy continuations to read."""
        stop = {TOKEN_ID[t] for t in ("<|endoftext|>", "<|user|>", "<|observation|>")}
        replies = self.generate([self.ids(p) for p in PROMPTS], self.size.new_tokens, stop)
        return [
            {"prompt": p, "text": self.tokenizer.decode(r, skip_special_tokens=False)}
            for p, r in zip(PROMPTS, replies, strict=True)
        ]
