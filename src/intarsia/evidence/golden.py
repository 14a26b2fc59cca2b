"""Golden outputs: what a form of the demo writes and how likely it finds a text, kept to be compared later.

Ids must be equal. Log-probabilities may differ by a margin that is measured when the file is made. The same
tokens are read in the other form of the network, one row at a time in place of chunks: the largest change in
the order of additions that is no error. Other machines and devices get 32 times its effect, which is still a
hundred times less than what the mildest conversion changes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from intarsia.core.errors import Violation
from intarsia.engine.runner import ModelRunner
from intarsia.evidence.forms import Form, tokenizer_of
from intarsia.models.glm5_next.model import Glm5NextModel

PROMPTS = (
    "Once upon a time",
    "[gMASK]<sop><|user|>What is 12 + 7?<|assistant|><think></think>",
    "Sort: 42, 7, 88, 19\n",
)
REPLY = 16
ALLOWANCE = 32
LEAST_MARGIN = 1e-5
DIGITS = 7


@torch.inference_mode()
def golden(form: Form, device: str = "cpu") -> dict[str, Any]:
    """The outputs of a form: greedy ids, the gap to the second choice, log-probabilities, and the margin."""
    model, tokenizer = form.load(device), tokenizer_of(form)
    cases, orders = [], []
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        reply, gaps, stepwise = _greedy(model, ids)
        logprobs = _logprobs(model.logits([*ids, *reply]), [*ids, *reply])
        told = zip(logprobs[len(ids) - 1 :], stepwise, strict=True)
        orders += [abs(chunked - stepped) for chunked, stepped in told]
        cases.append(
            {
                "prompt": prompt,
                "prompt_ids": ids,
                "reply_ids": reply,
                "gaps": [round(gap, DIGITS) for gap in gaps],
                "logprobs": [round(value, DIGITS) for value in logprobs],
            }
        )
    return {
        "form": form.label,
        "manifest_sha256": form.manifest_sha256,
        "margin": max(ALLOWANCE * max(orders), LEAST_MARGIN),
        "cases": cases,
    }


def compare_golden(kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[Violation]:
    """Where outputs are not those that were kept. A reply may part where the kept gap is within two margins,
    since then rounding decides; what follows is another text and is not compared."""
    found = []
    margin = kept["margin"]
    if kept["manifest_sha256"] != now["manifest_sha256"]:
        found.append(
            Violation("golden-manifest", kept["form"], now["manifest_sha256"], kept["manifest_sha256"])
        )
    for before, after in zip(kept["cases"], now["cases"], strict=True):
        where = repr(before["prompt"])
        if before["prompt_ids"] != after["prompt_ids"]:
            found.append(
                Violation("golden-prompt", where, str(after["prompt_ids"]), str(before["prompt_ids"]))
            )
            continue
        parts_at = _first_difference(before["reply_ids"], after["reply_ids"])
        if parts_at is not None and before["gaps"][parts_at] > 2 * margin:
            pair = after["reply_ids"][parts_at], before["reply_ids"][parts_at]
            found.append(Violation("golden-id", f"{where}, token {parts_at}", str(pair[0]), str(pair[1])))
        same = len(before["logprobs"]) if parts_at is None else len(before["prompt_ids"]) - 1 + parts_at
        for position in range(same):
            ours, theirs = before["logprobs"][position], after["logprobs"][position]
            if not abs(ours - theirs) <= margin:
                place = f"{where}, position {position + 1}"
                found.append(Violation("golden-logprob", place, f"{theirs}", f"{ours} within {margin:.3g}"))
    return found


def _first_difference(kept: Sequence[int], now: Sequence[int]) -> int | None:
    return next((at for at, pair in enumerate(zip(kept, now, strict=True)) if pair[0] != pair[1]), None)


def _greedy(model: Glm5NextModel, prompt: Sequence[int]) -> tuple[list[int], list[float], list[float]]:
    """Reply ids, each one's gap to the second choice, and its log-probability, one row a step."""
    runner = ModelRunner(model, window=len(prompt) + REPLY, max_drafts=0)
    logits = runner.start(prompt)
    reply, gaps, logprobs = [], [], []
    while True:
        best, second = logits.double().topk(2).values.tolist()
        token = int(logits.argmax())
        reply.append(token)
        gaps.append(best - second)
        logprobs.append(float(logits.double().log_softmax(-1)[token]))
        if len(reply) == REPLY:
            return reply, gaps, logprobs
        logits = runner.verify([token])[0]
        runner.commit(1)


def _logprobs(logits: torch.Tensor, tokens: Sequence[int]) -> list[float]:
    """Of every token but the first, given those before it."""
    wide = logits.double().log_softmax(-1)
    chosen = torch.tensor(tokens[1:], device=wide.device)
    values: list[float] = wide[:-1].gather(1, chosen.unsqueeze(1)).squeeze(1).tolist()
    return values
