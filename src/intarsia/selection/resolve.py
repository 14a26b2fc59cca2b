"""From a manifest and a source to exactly which module becomes what, or every reason why not."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from intarsia import formats
from intarsia.core.errors import IntarsiaError, Violation
from intarsia.families.groups import container_of
from intarsia.formats import csf
from intarsia.selection.errors import SelectionError
from intarsia.selection.manifest import Manifest, ScalePolicy, Section, SourceIdentity
from intarsia.selection.names import NameIndex, is_pattern
from intarsia.selection.source import PLAIN, Source, SourceModule

MAX_SUGGESTIONS = 20


@dataclass(frozen=True, slots=True)
class Target:
    """One matrix to convert. `named_as` is the manifest's entry, `group` the fused module it belongs to.

    `codec` says how its block scales are kept: a CSF codec, or None for plain.
    """

    module: str
    format: str
    section: str
    named_as: str
    group: str | None = None
    codec: str | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """A manifest resolved on a source. `targets` is by module name, in the source's order."""

    manifest: Manifest
    source: Source
    targets: Mapping[str, Target]

    def format_of(self, module: str) -> str:
        """The format a module has after conversion."""
        target = self.targets.get(module)
        return target.format if target is not None else self.source.modules[module].format

    def fused_modules(self, section: str, *, experts: bool = False) -> tuple[str, ...]:
        """Modules as a runtime counts them: a fused group once. With `experts` only the experts containers,
        else only the others."""
        names = dict.fromkeys(t.group or t.module for t in self.targets.values() if t.section == section)
        return tuple(name for name in names if name.endswith(".experts") == experts)


def resolve(manifest: Manifest, source: Source) -> Selection:
    """The exact selection. Reads nothing but what the arguments hold.

    Raises SelectionError with every violation of every section.
    """
    violations = list(source.violations)
    if manifest.source is not None and manifest.source != source.identity:
        violations.append(_identity(manifest.source, source.identity))
    targets: dict[str, Target] = {}
    for name, section in manifest.sections().items():
        work = _Section(name, section, source)
        targets.update(work.targets(scale_policy(manifest, name)))
        violations.extend(work.violations())
    if violations:
        raise SelectionError("manifest", violations)
    ordered = {module: targets[module] for module in source.modules if module in targets}
    return Selection(manifest, source, ordered)


def scale_policy(manifest: Manifest, section: str) -> ScalePolicy:
    """How a section keeps the scales of FP4 experts, with `inherit` resolved."""
    own = manifest.sections()[section].scales
    if own.policy != "inherit":
        return own
    main = manifest.main.scales if section != "main" else ScalePolicy()
    policy = main.policy if main.policy != "inherit" else "native"
    return ScalePolicy(policy, main.codec, own.layers)


def _identity(wanted: SourceIdentity, found: SourceIdentity) -> Violation:
    found_text, wanted_text = (
        f"{x.model_type}, {x.tensors} tensors, inventory {x.inventory_sha256[:12]}" for x in (found, wanted)
    )
    action = "write the manifest again for this source"
    return Violation("source-identity", "source", found_text, wanted_text, action)


class _Section:
    """Resolves one section and collects its violations."""

    def __init__(self, name: str, section: Section, source: Source) -> None:
        self.name = name
        self.section = section
        self.source = source
        self._suggested = 0
        self._policies: dict[str, str] = {}
        self._found: list[Violation] = []
        self._counts: list[int] = []
        self._alike: dict[tuple[str, str, str], int] = {}
        rules = source.family.groupings.get(section.grouping)
        if rules is None:
            known = ", ".join(sorted(source.family.groupings))
            self._add("unknown-grouping", f"{name}.grouping", repr(section.grouping), f"one of {known}")
            rules = ()
        self.index = NameIndex(source, rules)

    def targets(self, scales: ScalePolicy) -> dict[str, Target]:
        """Module -> Target of this section; incomplete when violations were found."""
        if self.section.strict and not self.section.targets:
            self._add(
                "strict-empty", f"{self.name}.targets", "no targets", "at least one when strict is true"
            )
        ignored = self._names(self.section.ignore, "ignore")
        claims: dict[str, list[str]] = {}
        chosen: dict[str, str] = {}
        for key, wanted in self.section.targets.items():
            format_name = self._format(key, wanted)
            for module in self._modules(key):
                claims.setdefault(module, []).append(key)
                if format_name is not None:
                    chosen[module] = format_name
        for module, keys in claims.items():
            self._check_claims(module, keys, ignored)
        self._layer_policies(scales)
        requantize = self._names(self.section.requantize, "requantize")
        for module in requantize - claims.keys():
            self._add("unused-requantize", module, "not a target", "a target of this section")
        result: dict[str, Target] = {}
        for module, format_name in chosen.items():
            self._check_module(self.source.modules[module], format_name, module in requantize)
            group = self.index.owner.get(module)
            codec = self._codec(module, format_name, scales)
            result[module] = Target(module, format_name, self.name, claims[module][0], group, codec)
        self._check_groups(chosen)
        return result

    def _layer_policies(self, scales: ScalePolicy) -> None:
        for layer, policy in scales.layers.items():
            members = self.index.lookup(layer)
            container = container_of(members[0]) if members else None
            if container is None:
                self._missing("unresolved-layer", layer, "an experts container")
            else:
                self._policies[container] = policy

    def _format(self, key: str, wanted: str) -> str | None:
        try:
            name = formats.canonical(wanted)
        except IntarsiaError as error:
            self._add("unknown-format", key, repr(wanted), error.expected)
            return None
        if name in PLAIN:
            self._add(
                "plain-target", key, name, "a quantized format", "leave the module out: it stays as stored"
            )
            return None
        return name

    def _modules(self, key: str) -> tuple[str, ...]:
        if not is_pattern(key):
            found = self.index.lookup(key)
        elif self.section.strict:
            self._add("strict-pattern", key, "a pattern", "exact names, since strict is true")
            return ()
        else:
            found = tuple(
                name
                for name in self._matches(key)
                if self.source.modules[name].draft == (self.name == "draft")
                and self.source.modules[name].kind != "other"
            )
        if not found:
            self._missing("unresolved", key, "a module of the source")
        return found

    def _matches(self, pattern: str) -> tuple[str, ...]:
        try:
            return self.index.match(pattern)
        except re.error as error:
            self._add("bad-pattern", pattern, str(error), "a glob or a regular expression")
            return ()

    def _names(self, names: list[str], field: str) -> set[str]:
        result: set[str] = set()
        for name in names:
            found = self._matches(name) if is_pattern(name) else self.index.lookup(name)
            if not found:
                self._missing(f"unused-{field}", name, "a module of the source")
            result.update(found)
        return result

    def _check_claims(self, module: str, keys: list[str], ignored: set[str]) -> None:
        if module in ignored:
            self._add("ignored-target", module, "in targets and in ignore", "one of the two")
        if len(keys) < 2:
            return
        sizes = {len(self.index.lookup(key)) for key in keys if not is_pattern(key)}
        rule = "named-with-its-group" if len(sizes) > 1 else "named-twice"
        self._add(rule, module, " and ".join(keys), "one target a module", "keep one of the entries")

    def _check_module(self, module: SourceModule, wanted: str, requantize: bool) -> None:
        where = module.name
        if module.draft != (self.name == "draft"):
            other = "draft" if module.draft else "main"
            self._add("wrong-section", where, f"it in {self.name}", f"it in {other}")
        if not module.used:
            self._add("outside-network", where, "a module the text network does not use", "a module it uses")
            return
        if module.kind == "other" or len(module.shape) < 2:
            self._add("not-linear", where, "a module that is not a linear matrix", "a projection or experts")
            return
        if module.quantized and not requantize:
            self._add(
                "already-quantized",
                where,
                f"stored as {module.format}",
                "BF16",
                "leave it out, or name it under requantize to decode and encode it again",
            )
        elif not module.quantized and module.format != "BF16":
            self._add("source-dtype", where, module.format, "BF16")
        if wanted == "NVFP4" and not module.input_scale:
            self._add(
                "activation-scale", where, "no calibrated input_scale", "one, for NVFP4", "use W4A16_NVFP4"
            )
        try:
            formats.get(wanted).layout(module.shape)
        except IntarsiaError as error:
            self._add("shape", where, error.found, f"{error.expected} for {wanted}")

    def _check_groups(self, chosen: Mapping[str, str]) -> None:
        for group in dict.fromkeys(
            self.index.owner[module] for module in chosen if module in self.index.owner
        ):
            members = self.index.groups[group]
            after = {member: chosen.get(member, self.source.modules[member].format) for member in members}
            if len(set(after.values())) == 1:
                continue
            missing = [member for member in members if member not in chosen]
            if missing:
                short = ", ".join(member.rpartition(".")[2] for member in missing[:6])
                self._add(
                    "incomplete-group",
                    group,
                    f"{len(missing)} of {len(members)} members not selected: {short}",
                    "all members of a fused group, or none",
                    "add them" if len(missing) < len(members) else "",
                )
            else:
                kinds = ", ".join(sorted(set(after.values())))
                self._add("mixed-group", group, kinds, "one format for a fused group")

    def _codec(self, module: str, format_name: str, scales: ScalePolicy) -> str | None:
        container = container_of(module)
        if container is None or not format_name.endswith("NVFP4"):
            return None
        if self._policies.get(container, scales.policy) != "csf":
            return None
        rows, columns = self.source.modules[module].shape
        try:
            csf.CODECS[scales.codec].require_matrix(rows, columns // 16)
        except IntarsiaError as error:
            self._add("csf-shape", module, error.found, f"{error.expected} for {scales.codec}")
        return scales.codec

    def _missing(self, rule: str, name: str, expected: str) -> None:
        near: list[str] = []
        if self._suggested < MAX_SUGGESTIONS and not is_pattern(name):
            self._suggested += 1
            near = self.index.nearest(name)
        self._add(rule, name, "nothing of that name", expected, "nearest: " + ", ".join(near) if near else "")

    def _add(self, rule: str, where: str, found: str, expected: str, action: str = "") -> None:
        # Hundreds of experts with the same fault are one violation that names the first and counts the rest.
        alike = (rule, container_of(where) or where, found)
        if alike in self._alike:
            self._counts[self._alike[alike]] += 1
            return
        self._alike[alike] = len(self._counts)
        self._counts.append(1)
        self._found.append(Violation(rule, where, found, expected, action))

    def violations(self) -> list[Violation]:
        """Everything found so far."""
        return [
            replace(item, found=f"{item.found}, and {count - 1} more experts alike") if count > 1 else item
            for item, count in zip(self._found, self._counts, strict=True)
        ]
