"""From a checkpoint and settings to a running server."""

from pathlib import Path

import torch

from intarsia import api
from intarsia.checkpoint import open_checkpoint
from intarsia.core.progress import SILENT, Progress
from intarsia.engine.engine import Engine
from intarsia.engine.text import TextAssets
from intarsia.loading.arrange import arrange
from intarsia.server.service import ServedModel, Service
from intarsia.server.settings import ServerSettings
from intarsia.server.web.process import Process, bind, read_keys
from intarsia.server.weights import weight_rows


def load_service(source: str, settings: ServerSettings, *, progress: Progress = SILENT) -> Service:
    """Load a checkpoint (its folder, or the word `demo`) and start an engine on it.

    Raises what `intarsia.load` raises, the text layer's errors, and CapacityError for settings that do not
    fit.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    checkpoint = open_checkpoint(source)
    arrangement = arrange(checkpoint)
    vocab_size = arrangement.config.vocab_size
    # before the weights: a checkpoint whose text part is unusable should not take minutes to say so
    text = TextAssets.open(checkpoint.path, checkpoint.config, vocab_size=vocab_size)
    if text.template is not None:
        text.template.check()
    network = api.load(checkpoint, settings.device, settings.dtype, progress=progress)
    rows = weight_rows(arrangement, settings.device, settings.dtype)
    model = ServedModel(
        names=settings.served_model_name or (Path(source).resolve().name if source != "demo" else "demo",),
        text=text,
        tokenizer_json=(checkpoint.path / "tokenizer.json").read_text(encoding="utf-8"),
        vocab_size=vocab_size,
        root=source,
        weights=lambda: rows,
    )
    engine = Engine(network, settings, end_ids=model.end_ids, pieces=text.tokenizer)
    return Service(settings, model, engine.start())


def serve(source: str, settings: ServerSettings, *, progress: Progress = SILENT) -> None:
    """Load and serve until a signal ends it.

    The address and the key file are looked at before anything is loaded. Raises what `load_service` raises,
    UsageError for an address that cannot be used, and KeyFileError.
    """
    read_keys(settings)
    listener = bind(settings)
    try:
        process = Process(load_service(source, settings, progress=progress), listener)
    except BaseException:
        listener.close()
        raise
    process.run()
