"""Which configuration each operation of a network runs with on a device, and where it is from."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from intarsia.core.config import ScaleForm
from intarsia.kernels.choice import GLUON, Case, choose
from intarsia.kernels.tuning import Configuration, Site, Table, configurations, described
from intarsia.loading.arrange import Arrangement
from intarsia.models.glm5_next.explain import forms_of
from intarsia.models.glm5_next.products import Experts, Product, possible, products, routed


@dataclass(frozen=True, slots=True)
class ConfigurationRow:
    """One configuration of an operation for row counts from `least` to `most`, None for all above.

    Times in microseconds where it was tuned: of what runs, and of the default beside it.
    """

    operation: str
    formats: tuple[str, ...]
    shape: tuple[int, ...]
    least: int
    most: int | None
    configuration: Mapping[str, Any]
    tuned: bool
    us: float | None = None
    default_us: float | None = None

    @property
    def origin(self) -> str:
        """Where it is from, in words."""
        if not self.tuned:
            return "default"
        if self.us == self.default_us:
            return f"tuned: the default is the fastest, {self.us:.2f} us"
        return f"tuned: {self.us:.2f} us, the default {self.default_us:.2f}"


def configuration_rows(
    arrangement: Arrangement,
    device: torch.device,
    dtype: str,
    table: Table | None,
    scales: ScaleForm = "expanded",
) -> tuple[ConfigurationRow, ...]:
    """A row for each operation, shape and bucket of row counts that has a choice on this device; buckets one
    after another that run alike and were not tuned are one row. None where other kernels run.
    """
    weights, config = forms_of(arrangement), arrangement.config
    kind = getattr(torch, dtype)
    found: list[Site] = []
    for product in products(weights):
        case = Case("linear", (product.form,), kind, device, (sum(product.sizes), product.columns))
        if choose(case) == GLUON:
            found += _sites(product)
    for experts in routed(weights, config):
        shape = (experts.experts, experts.inner, experts.width)
        if choose(Case("experts", (experts.form,) * 2, kind, device, shape)) == GLUON:
            found += _sites(experts, scales)
    return tuple(_joined(_row(site, table) for site in possible(found)))


def _sites(work: Product | Experts, scales: ScaleForm = "expanded") -> Iterator[Site]:
    """Those of all buckets."""
    first = work.site(1) if isinstance(work, Product) else work.site(1, scales)
    for rows in configurations(first.operation).buckets:
        yield work.site(rows) if isinstance(work, Product) else work.site(rows, scales)


def _row(site: Site, table: Table | None) -> ConfigurationRow:
    tunable = configurations(site.operation)
    one = table.found.get(site) if table is not None else None
    chosen: Configuration = one.configuration if one is not None else tunable.default(site)
    last = site.rows == tunable.buckets[-1]
    return ConfigurationRow(
        site.operation,
        site.formats,
        site.shape,
        tunable.smallest(site.rows),
        None if last else site.rows,
        described(chosen),
        one is not None,
        one.us if one is not None else None,
        one.default_us if one is not None else None,
    )


def _joined(rows: Iterable[ConfigurationRow]) -> list[ConfigurationRow]:
    """Neighbouring buckets with the same default as one row."""
    joined: list[ConfigurationRow] = []
    for row in rows:
        last = joined[-1] if joined else None
        if last is not None and not (last.tuned or row.tuned) and _alike(last, row):
            joined[-1] = ConfigurationRow(
                row.operation, row.formats, row.shape, last.least, row.most, row.configuration, False
            )
        else:
            joined.append(row)
    return joined


def _alike(a: ConfigurationRow, b: ConfigurationRow) -> bool:
    same = (a.operation, a.formats, a.shape, a.configuration) == (
        b.operation,
        b.formats,
        b.shape,
        b.configuration,
    )
    return same and a.most is not None and b.least == a.most + 1
