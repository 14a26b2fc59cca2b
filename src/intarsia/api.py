"""The functions a user of the package calls; `intarsia` exports them, importing this when first used."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from intarsia import checkpoint as checkpoints
from intarsia.checkpoint import AuditReport, Checkpoint, Summary, open_checkpoint
from intarsia.core.config import CacheType, DataType, EngineSettings, GenerationSettings, ScaleForm
from intarsia.core.errors import UsageError, Violation
from intarsia.core.progress import SILENT, Progress
from intarsia.engine.devices import usable_device
from intarsia.engine.generate import Generation
from intarsia.engine.graphs.expected import expected_reason
from intarsia.engine.joining import WatchedProgress, join, rank_device
from intarsia.engine.protocols import Runner
from intarsia.engine.resuming import ResumingRunner
from intarsia.engine.runner import ModelRunner
from intarsia.engine.text import TextAssets
from intarsia.engine.text_model import TextModel
from intarsia.engine.threads import use_threads
from intarsia.families.errors import ConfigError
from intarsia.families.registry import family_of
from intarsia.groups.group import SINGLE, Group
from intarsia.groups.join import own_status
from intarsia.kernels.tuning.use import AUTO, look, use
from intarsia.loading.arrange import Arrangement, arrange
from intarsia.loading.export import convert
from intarsia.loading.reload import reload_weights
from intarsia.loading.verify import verify_export
from intarsia.loading.weights import load_weights, prepared
from intarsia.models.glm5_next.configured import ConfigurationRow, configuration_rows
from intarsia.models.glm5_next.explain import WeightRow, weight_rows
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.planning.plan import plan
from intarsia.selection.manifest import Manifest, read_manifest
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of

__all__ = [
    "audit",
    "convert",
    "explain",
    "explain_configurations",
    "explain_steps",
    "generate",
    "inspect",
    "load",
    "load_text_model",
    "load_weights",
    "make_manifest",
    "open_checkpoint",
    "plan",
    "read_manifest",
    "reload_weights",
    "verify_export",
]

Path = str | os.PathLike[str]
_LOG = logging.getLogger(__name__)


def inspect(source: Checkpoint | Path) -> Summary:
    """Describe a checkpoint from its headers: formats by module class, bytes, shards, recipes, anything odd.

    What is wrong with it is listed, not raised. Raises `NotACheckpointError`.
    """
    checkpoint = _opened_leniently(source)
    architecture = _architecture_of(checkpoint)
    summary = checkpoints.summarize(checkpoint, optional=architecture.groups)
    return replace(summary, violations=[*summary.violations, *architecture.violations])


def audit(source: Checkpoint | Path, *, values: bool = False, progress: Progress = SILENT) -> AuditReport:
    """Check that a checkpoint is whole and consistent, and report every violation together.

    Its tensors are held against the architecture's where that is known tensor by tensor. With `values` all
    scales and numbers are read and checked too. Raises `NotACheckpointError`.
    """
    checkpoint = _opened_leniently(source)
    architecture = _architecture_of(checkpoint)
    report = checkpoints.audit(
        checkpoint,
        values=values,
        expected=architecture.shapes,
        optional=architecture.groups,
        progress=progress,
    )
    return replace(report, violations=(*report.violations, *architecture.violations))


def load(
    source: Arrangement | Checkpoint | Path,
    device: str | torch.device = "cpu",
    dtype: DataType = "float32",
    *,
    kv_cache_dtype: CacheType = "auto",
    expert_scales: ScaleForm = "expanded",
    manifest: Manifest | None = None,
    budget: int | None = None,
    receipt: Path | None = None,
    tuning: str = AUTO,
    group: Group = SINGLE,
    progress: Progress = SILENT,
) -> Glm5NextModel:
    """Load a network with its weights as stored; `model.logits(tokens)` gives float32 [T, vocabulary].

    `source` is a checkpoint, its folder, or the word `demo`; `dtype` is that of activations,
    `kv_cache_dtype` the form of cached latents ("auto": the same), `expert_scales` that of the block scales
    of NVFP4 experts on a GPU. With a `manifest` the modules it names are converted while they are read;
    `budget` and `receipt` are those of `load_weights`. Nothing is read before every tensor is known to be
    there in the right shape and format. `tuning` says which tuned configurations the kernels of the device
    use from now on: "auto" its own file where that holds (a warning is logged where one is there that does
    not), "off", or a file. With a `group` of several ranks this rank's share is loaded, and all
    ranks must run the same rows.

    Raises `UsageError` for a device this machine lacks, `TuningError` for a named file of configurations that
    does not hold, and what `open_checkpoint` and `load_weights` raise.
    """
    place = usable_device(device)
    state = use(tuning, place)
    if state.refused:
        _LOG.warning("%s", state)
    arrangement = prepared(source, manifest)
    status = own_status(group.rank)
    weights = load_weights(
        arrangement,
        device=place,
        budget=budget,
        receipt=receipt,
        rank=group.rank,
        ranks=group.ranks,
        largest=group.largest if group.ranks > 1 else None,
        progress=WatchedProgress(progress, status),
        on_weight=lambda name: status.tell(f"reads {name}"),
    )
    group.barrier("all have loaded")
    return Glm5NextModel(
        arrangement.config,
        weights,
        dtype=getattr(torch, dtype),
        device=place,
        group=group,
        latents=kv_cache_dtype,
        expert_scales=expert_scales,
    )


def explain(
    source: Checkpoint | Path,
    device: str | torch.device = "cpu",
    dtype: DataType = "float32",
    *,
    manifest: Manifest | None = None,
) -> tuple[WeightRow, ...]:
    """How `load` with the same arguments would run every weight: stored as, run as, kernel and reason.

    From headers alone. Raises UsageError for a device this machine lacks, and what `load` raises before it
    reads.
    """
    return weight_rows(prepared(source, manifest), usable_device(device), dtype)


def explain_steps(
    source: Checkpoint | Path,
    device: str | torch.device = "cpu",
    dtype: DataType = "float32",
    *,
    manifest: Manifest | None = None,
) -> str:
    """Why steps of written tokens would run eagerly, kernel by kernel, on one rank; empty where they would be
    captured. As `explain`, from headers alone.
    """
    arrangement, place = prepared(source, manifest), usable_device(device)
    rows = weight_rows(arrangement, place, dtype)
    return expected_reason(arrangement.config, rows, place, getattr(torch, dtype))


def explain_configurations(
    source: Checkpoint | Path,
    device: str | torch.device = "cpu",
    dtype: DataType = "float32",
    *,
    manifest: Manifest | None = None,
    tuning: str = AUTO,
    expert_scales: ScaleForm = "expanded",
) -> tuple[str, tuple[ConfigurationRow, ...]]:
    """With which configurations `load` would run the kernels that have a choice, and in words where those are
    from. As `explain`, from headers alone; nothing is put to use.
    """
    place = usable_device(device)
    state = look(tuning, place)
    rows = configuration_rows(prepared(source, manifest), place, dtype, state.table, expert_scales)
    return str(state), rows


def make_manifest(recipe: str, source: Checkpoint | Path) -> Manifest:
    """The manifest of exact names that a built-in recipe means for a source.

    Raises `RecipeNameError`, and `SelectionError` for a source whose headers contradict its configuration.
    """
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source, data_required=False)
    return apply_recipe(recipe, source_of(checkpoint))


def load_text_model(
    source: Checkpoint | Path,
    settings: EngineSettings | None = None,
    *,
    resume: bool = False,
    progress: Progress = SILENT,
) -> TextModel:
    """Load a network with its tokenizer and chat template, ready to write replies.

    With `resume` a prompt that goes on from the last one, as turns of a conversation do, runs what is new;
    that takes a few copies of a stream's fixed state.

    Raises what `load` raises, and the text layer's errors for a checkpoint without a usable tokenizer.
    """
    settings = settings or EngineSettings()
    place = usable_device(settings.device)
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    arrangement = arrange(checkpoint)
    use_threads(settings.threads, arrangement.config.hidden_size)
    vocab_size = arrangement.config.vocab_size
    assets = TextAssets.open(checkpoint.path, checkpoint.config, vocab_size=vocab_size)
    place = rank_device(settings, place)
    group = join(settings, arrangement, place)
    model = load(
        arrangement,
        place,
        settings.dtype,
        kv_cache_dtype=settings.kv_cache_dtype,
        expert_scales=settings.expert_scales,
        tuning=settings.tuning,
        group=group,
        progress=progress,
    )

    def make_runner(window: int, drafts: int) -> Runner:
        return (ResumingRunner if resume else ModelRunner)(model, window=window, max_drafts=drafts)

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


@dataclass(frozen=True)
class _Architecture:
    """What is known of a checkpoint's architecture; nothing where it is not known tensor by tensor."""

    shapes: dict[str, tuple[int, ...]] | None = None
    groups: dict[str, list[str]] | None = None
    violations: tuple[Violation, ...] = ()


def _architecture_of(checkpoint: Checkpoint) -> _Architecture:
    try:
        tensors = family_of(checkpoint.config).tensors
    except ConfigError as error:
        return _Architecture(violations=error.violations)
    if tensors is None:
        return _Architecture()
    groups: dict[str, list[str]] = {"mtp": [], "vision": []}
    for name, spec in tensors.items():
        if spec.part in groups:
            groups[spec.part].append(name)
    return _Architecture({name: spec.shape for name, spec in tensors.items()}, groups)


def _opened_leniently(source: Checkpoint | Path) -> Checkpoint:
    return source if isinstance(source, Checkpoint) else open_checkpoint(source, strict=False)
