"""A run of `tune`: the sites of a network, one search each, and the file."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from intarsia.core.errors import UsageError
from intarsia.core.progress import SILENT, Progress
from intarsia.evidence.machine import clocks, cuda_device
from intarsia.evidence.synthetic import geometry
from intarsia.evidence.synthetic.chosen import choose_formats
from intarsia.evidence.synthetic.memory import shared_shape
from intarsia.evidence.tuning.compilers import Compilers
from intarsia.evidence.tuning.settings import TuneSettings
from intarsia.evidence.tuning.timer import HeldTimer, quietly
from intarsia.evidence.tuning.work import Workshop
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.runtime import runtime_modules
from intarsia.families.glm5_next.split import shares, split_rule
from intarsia.kernels import choice
from intarsia.kernels.tuning import Site, described, install
from intarsia.kernels.tuning.document import SCHEMA, Document, Entry, Refused
from intarsia.kernels.tuning.identity import device_identity, sources_sha256, versions
from intarsia.kernels.tuning.search import Searched, search
from intarsia.loading.arrange import Arrangement
from intarsia.loading.receipts import now
from intarsia.loading.shares import share_of
from intarsia.models.glm5_next.explain import forms_of
from intarsia.models.glm5_next.products import Experts, Form, Product, possible, products, routed

SPENT, INTERRUPTED = "the budget was spent", "the run was interrupted"

Network = tuple[Glm5NextConfig, Mapping[str, Form]]
Job = tuple[Product | Experts, Site]
Search = Callable[[Product | Experts, Site], Searched]


@dataclass(frozen=True)
class TuneRun:
    """What was found, and the sites that were left with the reason; `interrupted`: somebody ended the run."""

    document: Document
    searched: tuple[Searched, ...]
    left: Mapping[Site, str]
    interrupted: bool = False

    def as_dict(self) -> dict[str, Any]:
        """JSON values of the document and of what was left."""
        return {
            **msgspec.to_builtins(self.document),
            "left": [{"site": str(site), "reason": reason} for site, reason in self.left.items()],
        }


def forms_of_geometry(
    name: str, recipe: str, rank: int = 0, ranks: int = 1
) -> tuple[Glm5NextConfig, dict[str, Form]]:
    """Run-time weights of a published model under a recipe: format and shape; of several ranks one's share.
    Raises UsageError.
    """
    chosen = choose_formats(geometry(name), recipe)
    found: dict[str, Form] = {}
    for module in runtime_modules(chosen.config):
        target = chosen.targets.get(module.sources[0])
        shape = tuple(module.shape)
        rule = split_rule(chosen.config, module.sources[0])
        if ranks > 1 and module.matrix and rule.axis is not None:
            shape = shared_shape(module, rule, len(shares(rule, ranks)[rank]))
        # Matrices that no recipe names are BF16; norms and the like are no products.
        found[module.name] = (target.format if target is not None else "BF16", shape)
    return chosen.config, found


def networks(settings: TuneSettings, arrangement: Arrangement | None) -> Iterator[Network]:
    """The weights of every rank of every count of ranks. Raises LoadError for shares that cannot be."""
    for ranks in settings.tp:
        for rank in range(ranks):
            if arrangement is None:
                yield forms_of_geometry(str(settings.geometry), settings.recipe, rank, ranks)
            else:
                yield arrangement.config, forms_of(share_of(arrangement, rank, ranks))


def jobs_of(found: Iterable[Network], settings: TuneSettings) -> list[Job]:
    """Every product's and every layer of experts' sites, each once; a product's together."""
    works: list[Product | Experts] = []
    for config, weights in found:
        if "linear" in settings.only:
            works += products(weights)
        if "experts" in settings.only:
            works += routed(weights, config)
    jobs: list[Job] = []
    seen: set[Site] = set()
    for work in works:
        sites = [
            work.site(rows) if isinstance(work, Product) else work.site(rows, settings.expert_scales)
            for rows in sorted(settings.rows)
        ]
        jobs += [(work, site) for site in possible(sites) if site not in seen]
        seen |= set(sites)
    return jobs


def device_of(settings: TuneSettings, arrangement: Arrangement | None) -> torch.device:
    """The device to search on. Raises UsageError without a GPU of the register kernels, or without exactly
    one network.
    """
    if (arrangement is None) == (settings.geometry is None):
        found = "neither" if arrangement is None else "both"
        raise UsageError("network", found=found, expected="a checkpoint's path or --geometry NAME")
    device = cuda_device(settings.device, action="kernels are only tuned on a GPU")
    if reason := choice.no_gluon(device):
        raise UsageError("device", found=reason, expected="a GPU whose kernels have configurations")
    return device


def tune(
    settings: TuneSettings, arrangement: Arrangement | None = None, *, progress: Progress = SILENT
) -> TuneRun:
    """Search on the device. Raises what `device_of` raises."""
    device = device_of(settings, arrangement)
    jobs = jobs_of(networks(settings, arrangement), settings)
    with torch.cuda.device(device):
        install(device, None)
        shop, timer = Workshop(device, settings.expert_scales), HeldTimer(device)
        compilers = Compilers(device, settings.expert_scales, settings.jobs)
        finish = time.monotonic() + settings.budget
        timer.warm_up()

        def one(work: Product | Experts, site: Site) -> Searched:
            known = compilers(work, site)
            with quietly():
                return search(
                    shop.trial(work, site),
                    timer,
                    repeats=settings.repeats,
                    known=known,
                    finish=lambda: time.monotonic() >= finish,
                )

        try:
            return run_jobs(jobs, one, settings, device, progress=progress)
        finally:
            compilers.close()


def run_jobs(
    jobs: list[Job],
    one: Search,
    settings: TuneSettings,
    device: torch.device,
    *,
    progress: Progress = SILENT,
) -> TuneRun:
    """The searches one after another until the budget is spent, or an interrupt; what was found until then is
    kept, and one that fails does not lose the others.
    """
    finish = time.monotonic() + settings.budget
    before = clocks(device)
    searched: list[Searched] = []
    left: dict[Site, str] = {}
    interrupted = False
    with progress.phase("tuning", len(jobs), "sites") as phase:
        for place, (work, site) in enumerate(jobs):
            if time.monotonic() >= finish:
                left[site] = SPENT
                continue
            try:
                searched.append(one(work, site))
            except KeyboardInterrupt:
                interrupted = True
                left |= {site: INTERRUPTED for _, site in jobs[place:]}
                break
            except Exception as error:
                left[site] = f"{type(error).__name__}: {error}".partition("\n")[0]
            phase.advance(1)
    document = Document(
        schema=SCHEMA,
        created=now(),
        device=device_identity(device),
        versions=versions(),
        kernels_sha256=sources_sha256(),
        entries=[_entry(item, settings.repeats) for item in searched],
        refused=[line for item in searched for line in _refused(item)],
        clocks={"before": before, "after": clocks(device)},
    )
    return TuneRun(document, tuple(searched), left, interrupted)


def _entry(searched: Searched, repeats: int) -> Entry:
    site, found = searched.site, searched.found
    return Entry(
        operation=site.operation,
        formats=list(site.formats),
        shape=list(site.shape),
        rows=site.rows,
        configuration=described(found.configuration),
        us=round(found.us, 3),
        spread_us=round(found.spread_us, 3),
        default_us=round(found.default_us, 3),
        default_spread_us=round(found.default_spread_us, 3),
        repeats=repeats,
    )


def _refused(searched: Searched) -> list[Refused]:
    site = searched.site
    return [
        Refused(site.operation, list(site.formats), list(site.shape), site.rows, described(one), reason)
        for one, reason in searched.refused.items()
    ]
