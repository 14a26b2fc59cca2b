"""What narrower latents cost the demo: a little with BF16, more with FP8, and each less than its bound."""

import torch

import intarsia
from intarsia.checkpoint import locate

TOKENS = 1024


@torch.inference_mode()
def test_narrow_latents_cost_little_and_what_they_should():
    tokens = intarsia.load_text_model("demo").assets.tokenizer.encode(
        (locate("demo") / "heldout.txt").read_text()[: 8 * TOKENS]
    )[:TOKENS]
    assert len(tokens) == TOKENS
    logits = {
        form: torch.log_softmax(intarsia.load("demo", kv_cache_dtype=form).logits(tokens).double(), -1)
        for form in ("auto", "bfloat16", "fp8")
    }
    plain = logits["auto"]
    lost = {
        form: float((plain.exp() * (plain - other)).sum(-1).mean())
        for form, other in logits.items()
        if form != "auto"
    }
    assert 0 < lost["bfloat16"] < 1e-8
    assert 10 * lost["bfloat16"] < lost["fp8"] < 1e-6
    assert (plain.argmax(-1) == logits["fp8"].argmax(-1)).double().mean() > 0.99
