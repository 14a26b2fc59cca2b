"""intarsia manifest: write, check and compare selections of modules and formats."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from intarsia.cli.output import emit_json, note, printable
from intarsia.core.words import counted

SourcePath = Annotated[str, tyro.conf.arg(metavar="PATH")]
ManifestPath = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MANIFEST")]


@dataclass(frozen=True, kw_only=True)
class ManifestWrite:
    """Write the manifest of a built-in recipe for a source: exact names, from headers alone."""

    source: SourcePath
    """Folder of the source checkpoint, or `demo`; its shards may be sparse or end behind their headers."""
    output_dir: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder for manifest.json; it must not exist."""
    recipe: str = "spark"
    """bf16, spark, fp4-local or nvfp4-experts."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from intarsia import api
        from intarsia.selection.manifest import manifest_hash, write_manifest

        manifest = api.make_manifest(self.recipe, self.source)
        path = write_manifest(manifest, self.output_dir)
        counts = {name: len(section.targets) for name, section in manifest.sections().items()}
        if self.json:
            emit_json({"manifest": str(path), "sha256": manifest_hash(manifest), "targets": counts})
        else:
            said = ", ".join(f"{count} {name} targets" for name, count in counts.items())
            note(f"{path}: {said}, sha256 {manifest_hash(manifest)}")
        return 0


@dataclass(frozen=True, kw_only=True)
class ManifestCheck:
    """Check that a manifest can be carried out exactly on a source; every violation is reported at once.

    Exit code 1 when there is one.
    """

    manifest: ManifestPath
    """A manifest, or its folder."""
    source: SourcePath
    """Folder of the source checkpoint, or `demo`."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from intarsia import api

        result = api.plan(self.source, api.read_manifest(self.manifest))
        if self.json:
            kept = ("violations", "targets", "modules", "manifest_sha256")
            emit_json({name: value for name, value in result.as_dict().items() if name in kept})
            return 0 if result.ok else 1
        for violation in result.violations:
            print(printable(str(violation)))
        targets = ", ".join(f"{count} {name}" for name, count in result.targets.items())
        modules = " + ".join(str(count) for count in result.modules.values())
        if result.ok:
            print(f"{targets or 'no targets'}; {modules or '0'} modules as a runtime fuses them")
        else:
            print(counted(len(result.violations), "violation"))
        return 0 if result.ok else 1


@dataclass(frozen=True, kw_only=True)
class ManifestDiff:
    """Say what two manifests, or a manifest and a checkpoint, differ in. Exit code 1 when they do."""

    first: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MANIFEST")]
    """A manifest, or its folder."""
    second: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MANIFEST_OR_CHECKPOINT")]
    """Another manifest, or the folder of a checkpoint."""
    source: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    """A checkpoint to resolve names on, so that different names of one module count as the same."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from intarsia import api
        from intarsia.selection.difference import diff_checkpoint, diff_manifests
        from intarsia.selection.source import source_of

        first = api.read_manifest(self.first)
        if _is_checkpoint(self.second):
            found = diff_checkpoint(first, source_of(api.open_checkpoint(self.second, data_required=False)))
        else:
            source = None
            if self.source is not None:
                source = source_of(api.open_checkpoint(self.source, data_required=False))
            found = diff_manifests(first, api.read_manifest(self.second), source)
        if self.json:
            emit_json({"differences": [asdict(item) for item in found]})
        else:
            for item in found:
                print(printable(f"{item.name}: {item.first or 'nothing'} | {item.second or 'nothing'}"))
            print(counted(len(found), "difference") if found else "no difference")
        return 1 if found else 0


def _is_checkpoint(path: str) -> bool:
    folder = Path(path)
    return path == "demo" or (folder / "config.json").is_file()


Action = (
    Annotated[ManifestWrite, tyro.conf.subcommand("write", prefix_name=False)]
    | Annotated[ManifestCheck, tyro.conf.subcommand("check", prefix_name=False)]
    | Annotated[ManifestDiff, tyro.conf.subcommand("diff", prefix_name=False)]
)


@dataclass(frozen=True, kw_only=True)
class ManifestCommand:
    """Write, check and compare manifests: which modules become which number format."""

    action: Annotated[Action, tyro.conf.arg(name="")]

    def run(self) -> int:
        return self.action.run()
