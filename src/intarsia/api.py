"""The functions a user of the package calls; `intarsia` exports them, importing this when first used."""

import os
from collections.abc import Sequence

import torch

from intarsia.checkpoint import Checkpoint, open_checkpoint
from intarsia.core.config import DataType, EngineSettings, GenerationSettings
from intarsia.core.errors import UsageError
from intarsia.core.progress import SILENT, Progress
from intarsia.engine.generate import Generation
from intarsia.engine.protocols import Runner
from intarsia.engine.runner import ModelRunner
from intarsia.engine.text import TextAssets
from intarsia.engine.text_model import TextModel
from intarsia.loading.arrange import Arrangement, arrange
from intarsia.loading.export import convert
from intarsia.loading.weights import load_weights
from intarsia.models.glm5_next.model import Glm5NextModel

__all__ = ["convert", "generate", "load", "load_text_model", "load_weights", "open_checkpoint"]

Path = str | os.PathLike[str]


def load(
    source: Checkpoint | Path,
    device: str | torch.device = "cpu",
    dtype: DataType = "float32",
    *,
    progress: Progress = SILENT,
) -> Glm5NextModel:
    """Load a network with its weights as stored; `model.logits(tokens)` gives float32 [T, vocabulary].

    `source` is a checkpoint, its folder, or the word `demo`; `dtype` is that of activations. Nothing is read
    before every tensor is known to be there in the right shape and format.

    Raises `UsageError` for a device this machine lacks, and what `open_checkpoint` and `load_weights` raise.
    """
    place = _device(device)
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    return _load(arrange(checkpoint), place, dtype, progress)


def load_text_model(
    source: Checkpoint | Path, settings: EngineSettings | None = None, *, progress: Progress = SILENT
) -> TextModel:
    """Load a network with its tokenizer and chat template, ready to write replies.

    Raises what `load` raises, and the text layer's errors for a checkpoint without a usable tokenizer.
    """
    settings = settings or EngineSettings()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    place = _device(settings.device)
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    plan = arrange(checkpoint)
    assets = TextAssets.open(checkpoint.path, checkpoint.config, vocab_size=plan.config.vocab_size)
    model = _load(plan, place, settings.dtype, progress)

    def make_runner(window: int, drafts: int) -> Runner:
        return ModelRunner(model, window=window, max_drafts=drafts)

    return TextModel(
        assets,
        make_runner,
        model_window=model.config.max_position_embeddings,
        can_draft=model.weights.mtp is not None,
        settings=settings,
    )


def generate(
    source: TextModel | Checkpoint | Path,
    prompt: str | Sequence[int],
    settings: GenerationSettings | None = None,
    *,
    engine: EngineSettings | None = None,
    progress: Progress = SILENT,
) -> Generation:
    """Continue a prompt: iterate for the text as it comes, or ask for the `result`.

    Without `settings` the checkpoint's own sampling is used. Load a `TextModel` once for several prompts.

        for delta in intarsia.generate("demo", "Once upon a time"):
            print(delta.text, end="", flush=True)
    """
    if not isinstance(source, TextModel):
        source = load_text_model(source, engine, progress=progress)
    elif engine is not None:
        raise UsageError(
            "engine", found="settings for a model that is loaded", action="pass them when loading it"
        )
    return source.generate(prompt, settings)


def _load(plan: Arrangement, device: torch.device, dtype: DataType, progress: Progress) -> Glm5NextModel:
    weights = load_weights(plan, device=device, progress=progress)
    return Glm5NextModel(plan.config, weights, dtype=getattr(torch, dtype), device=device)


def _device(device: str | torch.device) -> torch.device:
    problem = ""
    try:
        place = torch.device(device)
    except RuntimeError:
        problem = "no device name"
    else:
        if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
            problem = f"{torch.cuda.device_count()} CUDA devices"
    if problem:
        raise UsageError(
            "device", found=f"{device} ({problem})", expected="cpu or a CUDA device of this machine"
        )
    return place
