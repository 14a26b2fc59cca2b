"""Repeat invariance: a model must give the same numbers when it runs again, or nothing is compared."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from intarsia.evidence.errors import RepeatError
from intarsia.evidence.quality.capture import Capture
from intarsia.evidence.quality.kld import score_windows
from intarsia.evidence.quality.windows import Window
from intarsia.families.glm5_next.config import Glm5NextConfig


@dataclass(frozen=True, slots=True)
class Repeat:
    """What running a form again gave: the largest magnitude of KLD, which is 0, and equal first choices."""

    windows: int
    positions: int
    largest_kld: float
    top1: float


def check_repeat(
    first: Capture, again: Capture, windows: Sequence[Window], config: Glm5NextConfig, name: str = "base"
) -> Repeat:
    """Compare two runs of one model, both watched on `windows`.

    Raises RepeatError naming the first layer that left other residual streams, and how far the logits went.
    """
    scores = list(score_windows(first, again, windows))
    kld = np.concatenate([score.kld for score in scores])
    agree = np.concatenate([score.agree for score in scores])
    largest = float(np.abs(kld).max())
    for window, before, after in zip(windows, first.digests, again.digests, strict=True):
        differing = [
            layer for layer, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]
        ]
        if differing:
            raise _refused(name, f"window {window.index}, {describe_layer(config, differing[0])}", largest)
    if largest or not agree.all():
        raise _refused(name, "the head", largest)
    return Repeat(len(windows), len(kld), largest, float(agree.mean()))


def describe_layer(config: Glm5NextConfig, layer: int) -> str:
    """A layer by number and kind."""
    attention = "linear" if layer in config.kda_layers else "latent"
    feed_forward = "dense" if config.mlp_kind(layer) == "dense" else "routed"
    return f"layer {layer} ({attention} attention, {feed_forward} feed-forward)"


def _refused(name: str, where: str, largest: float) -> RepeatError:
    return RepeatError(
        f"repeat: {where}",
        found=f"other numbers in a second run of the {name}; the logits then differ by a KLD of "
        f"{largest:.3g}",
        expected="the same bits",
        action="turn off what is not deterministic there, then measure again",
    )
