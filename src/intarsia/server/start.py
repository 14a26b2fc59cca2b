"""From a checkpoint and settings to a running server."""

from pathlib import Path

import torch

from intarsia import api
from intarsia.checkpoint import Checkpoint, open_checkpoint
from intarsia.core.progress import SILENT, Progress
from intarsia.engine.engine import Engine
from intarsia.engine.joining import join, place_of, rank_device
from intarsia.engine.ranked import RankedEngine
from intarsia.engine.text import TextAssets
from intarsia.engine.threads import use_threads
from intarsia.groups.exchanging import RankGroup
from intarsia.kernels.tuning.use import look
from intarsia.loading.arrange import Arrangement, arrange
from intarsia.loading.shares import share_of
from intarsia.models.glm5_next.configured import configuration_rows
from intarsia.models.glm5_next.explain import weight_rows
from intarsia.server.grammar.compiler import GrammarCompiler
from intarsia.server.service import ServedModel, Service
from intarsia.server.settings import ServerSettings
from intarsia.server.web.process import Process, bind, read_keys


def load_service(source: str, settings: ServerSettings, *, progress: Progress = SILENT) -> Service:
    """Load a checkpoint (its folder, or the word `demo`) and start an engine on it.

    Raises what `intarsia.load` raises, the text layer's errors, and CapacityError for settings that do not
    fit.
    """
    checkpoint = open_checkpoint(source)
    arrangement = arrange(checkpoint)
    vocab_size = arrangement.config.vocab_size
    # before the weights: a checkpoint whose text part is unusable should not take minutes to say so
    text = TextAssets.open(checkpoint.path, checkpoint.config, vocab_size=vocab_size)
    if text.template is not None:
        text.template.check()
    grammars = _grammars(checkpoint, text, vocab_size)
    engine = _engine(arrangement, settings, text, grammars, progress)
    place = place_of(settings)
    share = share_of(arrangement, place.rank if place is not None else 0, settings.tp)
    where = rank_device(settings, torch.device(settings.device))
    rows = weight_rows(share, where, settings.dtype)
    state = look(settings.tuning, where)
    configured = configuration_rows(share, where, settings.dtype, state.table, settings.expert_scales)
    model = ServedModel(
        names=settings.served_model_name or (Path(source).resolve().name if source != "demo" else "demo",),
        text=text,
        tokenizer_json=_tokenizer_json(checkpoint),
        vocab_size=vocab_size,
        root=source,
        weights=rows,
        configurations=configured,
        tuning=str(state),
    )
    return Service(settings, model, engine.start(), grammars)


def _tokenizer_json(checkpoint: Checkpoint) -> str:
    return (checkpoint.path / "tokenizer.json").read_text(encoding="utf-8")


def _grammars(checkpoint: Checkpoint, text: TextAssets, vocab_size: int) -> GrammarCompiler:
    return GrammarCompiler(_tokenizer_json(checkpoint), vocab_size, sorted(ServedModel.end_ids_of(text)))


def _engine(
    arrangement: Arrangement,
    settings: ServerSettings,
    text: TextAssets,
    grammars: GrammarCompiler,
    progress: Progress,
) -> Engine:
    """The engine, its network loaded; over several ranks this process's part of it."""
    use_threads(settings.threads, arrangement.config.hidden_size)
    place = rank_device(settings, torch.device(settings.device))
    group = join(settings, arrangement, place)
    network = api.load(
        arrangement,
        place,
        settings.dtype,
        kv_cache_dtype=settings.kv_cache_dtype,
        expert_scales=settings.expert_scales,
        tuning=settings.tuning,
        group=group,
        progress=progress,
    )
    end_ids, pieces = ServedModel.end_ids_of(text), text.tokenizer
    if isinstance(group, RankGroup):
        return RankedEngine(
            network, settings, group, group.store, end_ids=end_ids, pieces=pieces, grammars=grammars
        )
    return Engine(network, settings, end_ids=end_ids, pieces=pieces)


def follow(source: str, settings: ServerSettings) -> None:
    """Load this rank's share and do the steps of rank 0 until it ends."""
    checkpoint = open_checkpoint(source)
    arrangement = arrange(checkpoint)
    text = TextAssets.open(checkpoint.path, checkpoint.config, vocab_size=arrangement.config.vocab_size)
    grammars = _grammars(checkpoint, text, arrangement.config.vocab_size)
    engine = _engine(arrangement, settings, text, grammars, SILENT)
    if isinstance(engine, RankedEngine):
        engine.follow()


def serve(source: str, settings: ServerSettings, *, progress: Progress = SILENT) -> None:
    """Load and serve until a signal ends it; a rank above 0 follows rank 0.

    The address and the key file are looked at before anything is loaded. Raises what `load_service` raises,
    UsageError for an address that cannot be used, KeyFileError, and the error that ended the other ranks.
    """
    place = place_of(settings)
    if place is not None and place.rank > 0:
        follow(source, settings)
        return
    read_keys(settings)
    listener = bind(settings)
    try:
        service = load_service(source, settings, progress=progress)
        process = Process(service, listener)
    except BaseException:
        listener.close()
        raise
    process.run()
    if isinstance(service.engine, RankedEngine) and service.engine.lost is not None:
        raise service.engine.lost
