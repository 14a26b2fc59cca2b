"""Writing a converted checkpoint: streamed from the source, complete or not at all, and resumable."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import torch

from intarsia import formats
from intarsia.checkpoint import Checkpoint, Reader, Resolution, open_checkpoint, resolve
from intarsia.checkpoint.checkpoint import stamp
from intarsia.checkpoint.errors import DiskSpaceError, InvalidCheckpointError, WriteError
from intarsia.checkpoint.streamed import StreamedShard
from intarsia.checkpoint.write import DEFAULT_SHARD_BYTES, HEADROOM, refuse_existing
from intarsia.core.progress import SILENT, Phase, Progress
from intarsia.core.receipt import refuse_existing as refuse_receipt
from intarsia.core.receipt import write as write_receipt
from intarsia.loading.converter import Converter
from intarsia.loading.errors import ConvertError, SourceChangedError
from intarsia.loading.extras import companion_files, conversion_record, export_files
from intarsia.loading.measure import Meter, Stopwatch
from intarsia.loading.outputs import Output, outputs, shards
from intarsia.loading.receipts import run_receipt
from intarsia.loading.shard_sink import ShardSink
from intarsia.loading.staging import Staging
from intarsia.loading.workspace import Json, Workspace, workspace
from intarsia.selection.manifest import Codec, Manifest, ScalePolicy, manifest_hash
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.resolve import Selection
from intarsia.selection.resolve import resolve as resolve_manifest
from intarsia.selection.source import source_of

CsfChoice = Literal["block", "slab", "none"]
_CODECS: dict[str, Codec] = {"block": "csf_32x2_v1", "slab": "nvfp4_slab"}
COPY_BYTES = 16 << 20
Hashes = dict[str, str]


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    recipe: str | None = None,
    manifest: Manifest | None = None,
    csf: CsfChoice | None = None,
    shard_size: int = DEFAULT_SHARD_BYTES,
    resume: bool = False,
    device: torch.device | str = "cpu",
    budget: int | None = None,
    receipt: str | os.PathLike[str] | None = None,
    progress: Progress = SILENT,
) -> Checkpoint:
    """Writes the checkpoint that a recipe or a manifest makes of `source`, and returns it opened.

    What the selection does not name is copied byte for byte. `csf` overrides how the main section's expert
    scales are kept. Shards of about `shard_size` bytes (exceptions of compressed scales come on top) go to
    `tensors/`, the metadata into both ModelOpt carriers; tokenizer, templates and generation settings are
    copied, and `conversion.json` records the manifest, the source and the sha256 of every tensor.

    The source is only read. `out` must not exist; it appears complete or not at all. A killed export leaves a
    hidden folder beside it, from which `resume` goes on to the same bytes.

    `receipt` names a file for what this run took: seconds a phase, predicted and measured working memory.

    Raises SelectionError, ResumeError and DiskSpaceError before a weight is read; ConvertError for a weight
    that cannot be encoded; SourceChangedError; and the checkpoint layer's errors for reading and writing.
    """
    if receipt is not None:
        refuse_receipt(receipt)
    watch = Stopwatch()
    target, place = Path(out), torch.device(device)
    with watch.phase("headers"):
        checkpoint = open_checkpoint(source)
        _refuse_overlap(checkpoint.path, target)
        selection = select(checkpoint, recipe=recipe, manifest=manifest, csf=csf)
        job = _Export(checkpoint, selection, target, shard_size)
    meter = Meter(place) if receipt is not None else None
    if resume and job.already_there():
        return open_checkpoint(target)
    refuse_existing(target)
    problem, hashes = "", {}
    try:
        with workspace(target, job.state(), resume=resume) as space:
            job.require_space(space)
            with watch.phase("read, encode and write", job.source_bytes):
                hashes = job.run(space, place, budget, progress)
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise WriteError(
            str(target),
            found=problem,
            expected="a folder that can be written",
            action="resume when there is room; nothing was left under the final name",
        )
    if receipt is not None and meter is not None:
        done = run_receipt(
            "convert", checkpoint, selection.manifest, place,
            {"out": str(target), "shard_size": shard_size, "resume": resume},
            watch, meter.read(0), hashes, trusted=meter.trusted, budget=budget,
        )  # fmt: skip
        write_receipt(done, receipt)
    return open_checkpoint(target)


def select(
    checkpoint: Checkpoint, *, recipe: str | None, manifest: Manifest | None, csf: CsfChoice | None = None
) -> Selection:
    """The resolved selection of a recipe or a manifest (exactly one of them) on an opened checkpoint."""
    if (recipe is None) == (manifest is None):
        raise ConvertError("conversion", found="a recipe and a manifest, or neither", expected="one of them")
    source = source_of(checkpoint)
    chosen = manifest if manifest is not None else apply_recipe(recipe or "", source)
    if csf is not None:
        chosen = with_csf(chosen, csf)
    return resolve_manifest(chosen, source)


def with_csf(manifest: Manifest, choice: CsfChoice) -> Manifest:
    """The manifest with another way to keep the main section's expert scales."""
    policy = ScalePolicy() if choice == "none" else ScalePolicy("csf", _CODECS[choice])
    return msgspec.structs.replace(manifest, main=msgspec.structs.replace(manifest.main, scales=policy))


class _Export:
    """One conversion: what is written is known when it begins."""

    def __init__(self, checkpoint: Checkpoint, selection: Selection, out: Path, shard_size: int) -> None:
        self.checkpoint = checkpoint
        self.selection = selection
        self.out = out
        self.shard_size = shard_size
        resolution: Resolution = resolve(checkpoint)
        if resolution.violations:
            raise InvalidCheckpointError(str(checkpoint.path), resolution.violations)
        self.modules = resolution.modules
        if not checkpoint.tensors:
            raise WriteError(str(checkpoint.path), found="no tensors", expected="at least one")
        self.shards = shards(list(outputs(checkpoint, self.modules, selection)), shard_size)
        self.companions = companion_files(checkpoint.path)

    @property
    def source_bytes(self) -> int:
        """Bytes of all tensors of the source."""
        return sum(entry.nbytes for entry in self.checkpoint.tensors.values())

    def state(self) -> Json:
        """What makes this export the same as one that was begun before."""
        files = [[shard.name, *map(str, shard.stamp)] for shard in self.checkpoint.shards]
        return {
            "schema": "intarsia.export/1",
            "version": conversion_record(self.checkpoint, self.selection, {})["version"],
            "source": {"path": str(self.checkpoint.path.resolve()), "files": files},
            "manifest": manifest_hash(self.selection.manifest),
            "shard_size": self.shard_size,
            "shards": len(self.shards),
        }

    def already_there(self) -> bool:
        """True when an earlier attempt was killed between its last two steps."""
        root = self.out.with_name(f".{self.out.name}.partial")
        if not self.out.is_dir() or (root / "checkpoint").exists() or not root.exists():
            return False
        with workspace(self.out, self.state(), resume=True) as space:
            space.remove()
        return True

    def require_space(self, space: Workspace) -> None:
        """Raises DiskSpaceError unless the disk holds everything that is not written yet.

        Exceptions of compressed scales are estimated (`outputs.EXCEPTIONS`); more of them end as a full disk.
        """
        needed = sum(path.stat().st_size for path in self.companions.values())
        for number, shard in enumerate(self.shards):
            if space.finished(number) is None:
                needed += sum(item.nbytes + item.exceptions for item in shard)
        writing = space.root / "writing"
        free = shutil.disk_usage(space.root).free + (writing.stat().st_size if writing.exists() else 0)
        if free < needed + HEADROOM:
            if space.finished(0) is None:
                space.remove()
            raise DiskSpaceError(
                str(self.out),
                found=f"{free / 2**30:.2f} GiB free",
                expected=f"{(needed + HEADROOM) / 2**30:.2f} GiB",
                action="free some space or choose another disk",
            )

    def run(self, space: Workspace, device: torch.device, budget: int | None, progress: Progress) -> Hashes:
        """Writes every shard that is not there yet, then the small files, and publishes; tensor hashes."""
        total = self.source_bytes
        records = []
        kept = True
        try:
            with self.checkpoint.reader() as reader, progress.phase("converting", total) as phase:
                staging = Staging(reader, device)
                converter = Converter(self.selection, self.modules, staging, phase, budget)
                for number, shard in enumerate(self.shards):
                    record = space.finished(number)
                    if record is None:
                        record = self._write(space, number, shard, converter, reader, phase)
                    records.append(record)
                self._unchanged()
            for name, content in export_files(
                self.checkpoint, self.modules, self.selection, records, self.companions
            ):
                space.write(space.checkpoint / name, content)
            space.publish()
            return {name: digest for record in records for name, digest in record["tensors"].items()}
        except (OSError, KeyboardInterrupt):
            raise
        except BaseException:
            kept = False
            raise
        finally:
            if not kept:
                space.remove()

    def _write(
        self,
        space: Workspace,
        number: int,
        items: Sequence[Output],
        converter: Converter,
        reader: Reader,
        phase: Phase,
    ) -> Json:
        path = space.writing()
        fixed = [tensor for item in items for tensor in item.fixed]
        variable = [tensor for item in items for tensor in item.variable]
        shard = StreamedShard(path, fixed, variable)
        try:
            for item in items:
                if item.copied is not None:
                    _copy(item, shard, reader, phase)
                else:
                    self._encode(item, shard, converter)
            size = shard.finish()
        finally:
            shard.close()
        file = f"tensors/model-{number + 1:05d}-of-{len(self.shards):05d}.safetensors"
        record = {"file": file, "size": size, "tensors": shard.digests, "nbytes": shard.sizes}
        space.finish(number, path, record)
        return record

    def _encode(self, item: Output, shard: StreamedShard, converter: Converter) -> None:
        jobs = []
        for target in item.targets:
            layout = formats.get(target.format).layout(self.modules[target.module].shape or ())
            jobs.append((target, ShardSink(shard, target, layout)))
        converter.convert(jobs)

    def _unchanged(self) -> None:
        for shard in self.checkpoint.shards:
            try:
                same = stamp(os.stat(shard.path)) == shard.stamp
            except OSError:
                same = False
            if not same:
                raise SourceChangedError(
                    shard.name,
                    found="no file, or another one, size or time than when the conversion began",
                    expected="a source that stays as it is",
                    action="convert it again",
                )


def _copy(item: Output, shard: StreamedShard, reader: Reader, phase: Phase) -> None:
    entry = item.copied
    if entry is None:
        return
    for begin in range(0, entry.nbytes, COPY_BYTES):
        part = bytearray(min(COPY_BYTES, entry.nbytes - begin))
        reader.read_into(entry, part, begin, begin + len(part))
        shard.write(entry.name, begin, memoryview(part))
    phase.advance(entry.nbytes)


def _refuse_overlap(source: Path, out: Path) -> None:
    inside = source.resolve()
    if out.resolve() == inside or inside in out.resolve().parents:
        raise ConvertError(
            str(out),
            found="a path inside the source",
            expected="a folder of its own",
            action="choose another path",
        )
