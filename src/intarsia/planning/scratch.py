"""Scales that stay compressed in memory, and the scratch they are expanded into.

One pair of buffers serves every layer of one shape, main and draft alike, since a layer's scales are only
needed while it runs. Streams that run at the same time need their own.
"""

from intarsia.families.glm5_next.split import SplitRule, shares
from intarsia.families.groups import container_of
from intarsia.planning.items import Item, compressed_bytes
from intarsia.planning.shares import Parts


class Scratch:
    """Adds up what each rank's largest compressed layer expands to, once a shape."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._layers: dict[str, list[int]] = {}

    def compressed(self, item: Item, rule: SplitRule | None, parts: tuple[Parts, ...]) -> tuple[Parts, ...]:
        """The shares of a matrix with its scales compressed (exceptions left out); counts its expansion."""
        codec = item.codec or ""
        layer = self._layers.setdefault(container_of(item.name) or item.name, [0] * self._ranks)
        result = []
        for rank, part in enumerate(parts):
            layer[rank] += part.scales
            rows, columns = item.form.shape[-2:]
            if rule is not None and rule.axis is not None:
                size = len(shares(rule, self._ranks)[rank])
                rows, columns = (size, columns) if rule.axis == 0 else (rows, size)
            result.append(part._replace(scales=compressed_bytes(codec, rows, columns // 16)))
        return tuple(result)

    def bytes(self) -> list[int]:
        """Bytes of scratch a rank: one buffer for all layers that expand alike."""
        alike = {tuple(sizes) for sizes in self._layers.values()}
        return [sum(sizes[rank] for sizes in alike) for rank in range(self._ranks)]
