"""The course of a load: weights arrive one after another, and each needs working memory while it does."""

from typing import NamedTuple

from intarsia.checkpoint.findings import Findings
from intarsia.families.glm5_next.runtime import runtime_modules
from intarsia.families.registry import Family
from intarsia.planning.errors import BudgetError
from intarsia.planning.items import Item, unit_key
from intarsia.planning.shares import Parts
from intarsia.planning.working import Working
from intarsia.selection.resolve import Selection


class Peak(NamedTuple):
    """The highest point of a rank's load: bytes, the weight it is reached at, and the most working memory."""

    nbytes: int
    at: str
    working: int


class Loading:
    """Collects the weights of a load and finds its peak."""

    def __init__(self, family: Family, ranks: int, working: Working) -> None:
        self._family = family
        self._ranks = ranks
        self._working = working
        self._shares: dict[str, tuple[Parts, ...]] = {}
        self._converted: dict[str, tuple[Item, str]] = {}
        self._units: dict[str, int] = {}

    def add(self, item: Item, shares: tuple[Parts, ...], selection: Selection | None) -> None:
        """One weight and its shares."""
        self._shares[item.name] = shares
        if item.converted and selection is not None:
            target = selection.targets[item.name]
            key = unit_key(item.name, target.format, target.group)
            self._converted[item.name] = (item, key)
            self._units[key] = self._units.get(key, 0) + _decoded_bytes(item)

    def peaks(self, found: Findings) -> list[Peak]:
        """The peak of every rank; a matrix whose conversion breaks the budget is noted in `found`."""
        result = [Peak(0, "", 0)] * self._ranks
        resident = [0] * self._ranks
        for name, sources in self._order():
            extra = max((self._step(source, found) for source in sources), default=0)
            for rank in range(self._ranks):
                resident[rank] += sum(self._shares[source][rank].total for source in sources)
                best = result[rank]
                if resident[rank] + extra > best.nbytes:
                    best = best._replace(nbytes=resident[rank] + extra, at=name)
                result[rank] = best._replace(working=max(best.working, extra))
        return result

    def _order(self) -> list[tuple[str, list[str]]]:
        """Run-time weight -> the loaded sources it is made of, in loading order."""
        config = self._family.glm5_next
        if config is None:
            return [(name, [name]) for name in self._shares]
        return [
            (module.name, found)
            for module in runtime_modules(config)
            if (found := [name for source in module.sources if (name := self._known(source))])
        ]

    def _known(self, source: str) -> str | None:
        if source in self._shares:
            return source
        return f"{source}.weight" if f"{source}.weight" in self._shares else None

    def _step(self, name: str, found: Findings) -> int:
        if name not in self._converted:
            return 0
        item, key = self._converted[name]
        try:
            return self._working.step(
                name,
                item.form.format or "",
                item.form.shape,
                element=element_bytes(item.stored),
                unit=self._units[key],
                stored=item.stored,
            ).nbytes
        except BudgetError as error:
            if not found.has("budget"):
                found.add("budget", name, error.found, error.expected, error.action)
            return 0


def element_bytes(stored: str | None) -> int:
    """Bytes of a source element as the encoder gets it: BF16 as read, or float32 once decoded."""
    return 2 if stored is None else 4


def _decoded_bytes(item: Item) -> int:
    rows, columns = item.form.shape[-2:]
    return rows * columns * element_bytes(item.stored)
