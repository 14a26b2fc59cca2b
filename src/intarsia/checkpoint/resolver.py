"""Which format each module is stored in: the metadata's verdict held against the tensors' signature.

Neither is believed alone. A module that metadata calls quantized must fulfil that algorithm's contract
exactly, and one that it calls plain must look plain; everything else is a violation that names both.
"""

from collections.abc import Iterable

from intarsia.checkpoint.algorithms import CONTRACTS, READ
from intarsia.checkpoint.checkpoint import Checkpoint
from intarsia.checkpoint.contracts import Issue, contract_issues, logical_shape
from intarsia.checkpoint.entry import TensorEntry
from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.module import Module
from intarsia.checkpoint.recipes import BLOCK, SLAB, Recipe
from intarsia.checkpoint.signature import candidates, codec_of, is_plain, split_name
from intarsia.checkpoint.verdicts import Judge, Verdict, main_layers, never_wrapped

CODEC_OF_ENCODING = {SLAB: "nvfp4_slab", BLOCK: "csf_32x2_v1"}


def group(tensors: Iterable[TensorEntry]) -> dict[str, dict[str, TensorEntry]]:
    """Module name -> suffix -> entry."""
    grouped: dict[str, dict[str, TensorEntry]] = {}
    for entry in tensors:
        module, suffix = split_name(entry.name)
        held = grouped.get(module)
        if held is None:
            grouped[module] = {suffix: entry}
        else:
            held[suffix] = entry
    return grouped


class Resolver:
    """Collects modules, contradictions (`findings`) and decided oddities (`notes`)."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.layers = main_layers(checkpoint.config)
        self.judges = [Judge(view, self.layers) for view in checkpoint.quantization.views]
        self.grouped = group(checkpoint.tensors.values())
        self.findings, self.notes = Findings(), Findings()
        self.modules: dict[str, Module] = {}
        self.unlisted: list[tuple[str, Verdict]] = []  # plain, though the algorithm is for the whole model
        self.without_input_scale: list[str] = []
        self.answers: dict[tuple[object, ...], list[Issue]] = {}

    def run(self) -> None:
        """Decide every module, then settle what only the whole checkpoint can tell."""
        for name, tensors in self.grouped.items():
            self.modules[name] = self._decide(name, tensors)
        self._settle_weight_only()
        self._settle_unlisted()
        for judge in self.judges:
            self._report_metadata(judge)

    def _decide(self, name: str, tensors: dict[str, TensorEntry]) -> Module:
        plain = is_plain(tensors)
        verdicts = [(judge, verdict) for judge in self.judges for verdict in judge.verdicts(name)]
        if not verdicts:
            return self._without_metadata(name, tensors, plain)
        outcomes = [
            (verdict, self._issues(judge, verdict, name, tensors, plain)) for judge, verdict in verdicts
        ]
        fitting = [verdict for verdict, issues in outcomes if not issues]
        if not fitting:
            self._report(name, outcomes[0])
            if outcomes[-1][0].recipe != outcomes[0][0].recipe:
                self._report(name, outcomes[-1])
            return self._module(name, tensors, self._guess(tensors, plain), outcomes[0][0].recipe)
        algorithms = {None if plain or v.recipe is None else v.recipe.algo for v in fitting}
        if len(algorithms) > 1:
            self.findings.add(
                "ambiguous-recipe",
                name,
                " and ".join(sorted(f"{v.recipe.title if v.recipe else 'plain'} ({v.why})" for v in fitting)),
                "metadata of which one fits the tensors",
            )
        elif len(fitting) < len(outcomes):
            self._note_arbitration(name, [verdict for verdict, _ in outcomes], fitting[0])
        chosen = fitting[0]
        if plain or chosen.recipe is None:
            if chosen.recipe is not None:
                self.unlisted.append((name, chosen))
            return self._module(name, tensors, None, None)
        return self._quantized(name, tensors, chosen.recipe)

    def _without_metadata(self, name: str, tensors: dict[str, TensorEntry], plain: bool) -> Module:
        if not plain:
            self._report(name, (Verdict(None, "there is no quantization metadata"), [_undeclared(tensors)]))
        return self._module(name, tensors, self._guess(tensors, plain), None)

    def _issues(
        self, judge: Judge, verdict: Verdict, name: str, tensors: dict[str, TensorEntry], plain: bool
    ) -> list[Issue]:
        """Why a verdict does not fit the tensors; empty when it does."""
        recipe = verdict.recipe
        if recipe is None:
            return [] if plain else [_undeclared(tensors)]
        if plain:
            weight = tensors.get("weight")
            found = f"{weight.dtype} {list(weight.shape)}" if weight else "no weight"
            wrong = Issue("declared-but-plain", "weight", found, f"{recipe.title} tensors")
            return [wrong] if verdict.explicit else []
        # Thousands of experts share one layout and one recipe, so the answer is kept by both.
        layout = tuple((suffix, entry.dtype, entry.shape) for suffix, entry in tensors.items())
        key = recipe.algo, recipe.encoding, judge.carrier.implied_csf, layout
        known = self.answers.get(key)
        if known is None:
            known = self.answers[key] = _quantized_issues(recipe, judge.carrier.implied_csf, tensors)
        return known

    def _quantized(self, name: str, tensors: dict[str, TensorEntry], recipe: Recipe) -> Module:
        if recipe.algo == "NVFP4" and "input_scale" not in tensors:
            self.without_input_scale.append(name)
        if not CONTRACTS[recipe.algo].read:
            self.findings.add(
                "recipe-not-read",
                name,
                f"the recipe {recipe.written}",
                "one of " + ", ".join(READ),
                "convert the checkpoint with the tool that made it",
            )
        return self._module(name, tensors, recipe.algo, recipe)

    def _module(
        self, name: str, tensors: dict[str, TensorEntry], algo: str | None, recipe: Recipe | None
    ) -> Module:
        if algo is None:
            weight = tensors.get("weight")
            return Module(name, None, tensors, weight.shape if weight else None)
        contract = CONTRACTS[algo]
        return Module(
            name, algo, tensors, logical_shape(contract, tensors[contract.weight]), codec_of(tensors), recipe
        )

    def _guess(self, tensors: dict[str, TensorEntry], plain: bool) -> str | None:
        """The only algorithm that the tensors fit, for reports about contradictions."""
        found = [] if plain else candidates(tensors)
        return found[0] if len(found) == 1 else None

    def _report(self, name: str, outcome: tuple[Verdict, list[Issue]]) -> None:
        verdict, issues = outcome
        for issue in issues:
            where = f"{name}.{issue.suffix}" if issue.suffix else name
            self.findings.add(issue.rule, where, issue.found, f"{issue.expected} ({verdict.why})")

    def _note_arbitration(self, name: str, all_verdicts: list[Verdict], chosen: Verdict) -> None:
        said = "; ".join(
            dict.fromkeys(f"{v.recipe.title if v.recipe else 'plain'}: {v.why}" for v in all_verdicts)
        )
        used = chosen.recipe.title if chosen.recipe else "plain"
        self.notes.add("carriers-disagree", name, said, f"one statement; the tensors fit only {used}")

    def _settle_weight_only(self) -> None:
        """NVFP4 without any input_scale is weight-only; with some of them missing, those are lost."""
        if not self.without_input_scale:
            return
        declared = [
            name for name, m in self.modules.items() if m.recipe is not None and m.recipe.algo == "NVFP4"
        ]
        lacking = set(self.without_input_scale)
        for name in self.without_input_scale:
            self.modules[name] = self.modules[name]._replace(format="W4A16_NVFP4")
        if lacking.issuperset(declared):
            self.notes.add(
                "weight-only",
                f"{len(lacking)} modules",
                "NVFP4 without input_scale anywhere",
                "W4A16_NVFP4, which they are read as",
            )
            return
        for name in self.without_input_scale:
            self.findings.add(
                "missing-companion",
                f"{name}.input_scale",
                "no such tensor",
                f"it for NVFP4, as {len(declared) - len(lacking)} other modules have it",
                "download the shards again; a lost input_scale is never taken as zero",
            )

    def _settle_unlisted(self) -> None:
        """Plain modules under a checkpoint-wide algorithm must be excluded or of a kind never wrapped."""
        judge = self.judges[0] if self.judges else None
        if judge is None or not judge.carrier.strict_plain or not self.unlisted:
            return
        suspects = [
            (name, verdict)
            for name, verdict in self.unlisted
            if not never_wrapped(name, len(self.modules[name].shape or ()), self.layers)
        ]
        patterns = judge.exclude
        if suspects and patterns.patterns and len(patterns.unmatched()) == len(patterns.patterns):
            self.notes.add(
                "exclude-list-corrupt",
                judge.carrier.source,
                f"{len(patterns.patterns)} exclude patterns of which none matches a module",
                "patterns of this model; the tensors decided instead",
            )
            return
        for name, verdict in suspects:
            entry = self.modules[name].tensors["weight"]
            title = verdict.recipe.title if verdict.recipe else ""
            self.findings.add(
                "declared-but-plain",
                f"{name}.weight",
                f"{entry.dtype} {list(entry.shape)} without scales",
                f"{title} tensors, or an exclude pattern ({verdict.why})",
                "exclude the module in the metadata if it is meant to be plain",
            )

    def _report_metadata(self, judge: Judge) -> None:
        """Entries and patterns of the metadata that no module answers to."""
        for name in judge.unused():
            self.findings.add(
                "recipe-without-tensors",
                name,
                f"a recipe in {judge.carrier.source} and no tensors",
                "tensors for every recipe",
                "the shard is missing, or the name belongs to another model",
            )
        for name, hits in judge.conflicts:
            self.findings.add(
                "alias-conflict", name, f"different recipes under {', '.join(hits[:4])}", "one recipe"
            )
        for error in judge.exclude.refused:
            self.findings.add("unreadable-pattern", error.where, error.found, error.expected, error.action)
        unmatched = judge.exclude.unmatched()
        if unmatched:
            self.notes.add(
                "unmatched-patterns",
                judge.carrier.source,
                f"{len(unmatched)} exclude patterns that match no module: {', '.join(unmatched[:5])[:300]}",
                "patterns of modules that exist",
            )


def _quantized_issues(recipe: Recipe, implied_csf: bool, tensors: dict[str, TensorEntry]) -> list[Issue]:
    codec = codec_of(tensors)
    issues = contract_issues(CONTRACTS[recipe.algo], tensors, codec)
    issues += _encoding_issues(recipe, codec, implied_csf)
    if recipe.algo == "NVFP4" and [(issue.rule, issue.suffix) for issue in issues] == [_NO_INPUT_SCALE]:
        return []  # settled when it is known whether all or only some lack it
    return _most_telling(issues, recipe, tensors)


_NO_INPUT_SCALE = ("missing-companion", "input_scale")


def _undeclared(tensors: dict[str, TensorEntry]) -> Issue:
    """The issue of a module that looks quantized although no recipe covers it."""
    fits = candidates(tensors)
    if fits:
        return Issue("undeclared-format", "", f"tensors of {' or '.join(fits)}", "plain tensors")
    weight = tensors.get("weight")
    if weight is None:
        return Issue(
            "orphan-companion", next(iter(tensors)), "scales without a weight", "a weight beside them"
        )
    held = ", ".join(
        f"{suffix} {entry.dtype} {list(entry.shape)}" for suffix, entry in list(tensors.items())[:6]
    )
    rule = "scale-lost" if len(tensors) == 1 else "unknown-format"
    return Issue(rule, "weight", held[:400], "plain tensors, or the exact tensors of a known format")


def _encoding_issues(recipe: Recipe, codec: str | None, implied: bool) -> list[Issue]:
    """The `weight_scale_encoding` of a recipe and the components on disk must say the same."""
    declared = CODEC_OF_ENCODING.get(recipe.encoding or "")
    if declared == codec or (implied and declared is None):
        return []
    found = f"scales in {codec}" if codec else "plain scales"
    expected = (
        f"{declared} components" if declared else "plain scales, since no weight_scale_encoding is given"
    )
    return [Issue("scale-encoding", "weight_scale", found, expected)]


def _most_telling(issues: list[Issue], recipe: Recipe, tensors: dict[str, TensorEntry]) -> list[Issue]:
    """One clear sentence where the tensors are simply those of another algorithm."""
    if not issues:
        return []
    fits = [name for name in candidates(tensors) if name != recipe.algo]
    if not fits:
        return issues
    return [
        Issue("recipe-contradicts-tensors", "", f"tensors of {' or '.join(fits)}", f"those of {recipe.title}")
    ]
