"""One weight after another: allocated once at its final size, filled in place, encoded on the way."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from intarsia import formats
from intarsia.core.progress import Phase
from intarsia.formats import Stored
from intarsia.loading import compressed
from intarsia.loading.asks import Ask, Span, one_by_one
from intarsia.loading.bulk import Group, groups, span_of
from intarsia.loading.converter import Converter
from intarsia.loading.layout import Arranged, Arrangement, Conversion, Piece, Slot
from intarsia.loading.maxima import Largest
from intarsia.loading.sinks import Place
from intarsia.loading.staging import Staging
from intarsia.loading.window import Window, whole, window_of, within

Weight = Stored | torch.Tensor


class Loader:
    """Loads one weight after another; `most_working` is the most memory used beside them."""

    def __init__(
        self,
        plan: Arrangement,
        staging: Staging,
        phase: Phase,
        budget: int | None = None,
        *,
        ranks: int = 1,
        largest: Largest | None = None,
        apart: bool = False,
        later: bool = False,
    ) -> None:
        """`apart`: every weight is brought by itself, and none waits in memory until it is asked for.
        `later`: what a GPU notes about values is looked at by `settle`, not by every `load`.
        """
        self._apart, self._later = apart, later
        self._noted: list[tuple[torch.Tensor, Callable[[int], None]]] = []
        self._plan = plan
        self._staging = staging
        self._phase = phase
        self._converter: Converter | None = None
        self._groups: dict[str, Group] = {}
        self._ready: dict[str, dict[str, torch.Tensor]] = {}
        if plan.selection is not None:
            self._converter = Converter(
                plan.selection, plan.modules, staging, phase, budget, ranks=ranks, largest=largest
            )

    @property
    def most_working(self) -> int:
        """The most working memory that conversion has held so far, in bytes."""
        return self._converter.ledger.most if self._converter is not None else 0

    def read_ahead(self) -> None:
        """Reads what the weights take in the background, if they are loaded in the arrangement's order to a
        GPU. A CPU that encodes is busy with that, and reads straight to where the bytes stay.
        """
        if self._staging.device.type == "cuda":
            self._staging.read_ahead(self.asks())

    def asks(self) -> Iterator[Ask]:
        """What loading all weights in order asks for, in order, as far as that is known before."""
        known: set[str] = set()
        for group in groups(self._plan.weights, self._staging.device, apart=self._apart):
            self._groups |= {arranged.module.name: group for arranged in group.weights}
            if group.straight:
                yield from (bulk.ask for bulk in group.bulks())
            else:
                yield from one_by_one(_spans(group.weights[0]))
            for arranged in group.weights:
                if self._converter is None or not arranged.conversions:
                    continue
                stacks = self._converter.stacks.of(arranged)
                yield from (stack.ask for stack in stacks)
                if not stacks:
                    parts = [(item.target, self._window(arranged, item)) for item in arranged.conversions]
                    yield from one_by_one(self._converter.spans(parts, known))

    def load(self, arranged: Arranged) -> Weight:
        """One weight: its tensors are allocated once, at their final size, and filled in place. Weights that
        are read together with it are filled too, and kept until they are asked for.
        """
        tensors = self._ready.pop(arranged.module.name, None)
        if tensors is None:
            tensors = self._filled(arranged)
        if self._converter is not None and arranged.conversions:
            self._convert(self._converter, arranged, tensors)
        if not self._later:
            self.settle()
        if arranged.format is None:
            return tensors["weight"]
        kind = formats.get(arranged.format)
        return kind.stored(tensors, origin=arranged.origin, row_parts=arranged.row_parts)

    def settle(self) -> None:
        """Looks at the files, and at what was noted on the device since it was last called: waits for that.

        Raises ChangedError for a file that is another one now, CsfError for compressed scales that break a
        rule and ConvertError for what cannot be encoded: they are looked for in the source.
        """
        self._staging.require_unchanged()
        noted, self._noted = self._noted, []
        if not noted:
            return
        faults = torch.cat([flags for flags, _ in noted]).tolist()
        explain = [(tell, index) for flags, tell in noted for index in range(len(flags))]
        for fault, (tell, index) in zip(faults, explain, strict=True):
            if fault:
                tell(index)

    def _convert(self, converter: Converter, arranged: Arranged, tensors: dict[str, torch.Tensor]) -> None:
        stacks = converter.stacks.of(arranged)
        if stacks:
            faults = converter.stacks.encode(arranged, tensors, self._phase)
            self._noted.append((faults, lambda index: converter.explain(stacks[index].targets)))
            return
        converter.convert(
            (conversion.target, self._place(tensors, arranged, conversion))
            for conversion in arranged.conversions
        )

    def _filled(self, arranged: Arranged) -> dict[str, torch.Tensor]:
        """The tensors of a weight with what is stored of them."""
        group = self._groups.pop(arranged.module.name, None)
        if group is None and self._staging.delivers:
            group = next(groups([arranged], self._staging.device))
        if group is None or not group.straight:
            tensors = self._allocated(arranged)
            self._fill(arranged, tensors)
            return tensors
        made = [self._allocated(one) for one in group.weights]
        self._deliver(group, made)
        self._ready |= {one.module.name: held for one, held in zip(group.weights, made, strict=True)}
        for one in group.weights:
            self._groups.pop(one.module.name, None)
        return self._ready.pop(arranged.module.name)

    def _allocated(self, arranged: Arranged) -> dict[str, torch.Tensor]:
        return {
            suffix: torch.empty(slot.shape, dtype=slot.dtype, device=self._staging.device)
            for suffix, slot in arranged.slots.items()
        }

    def _deliver(self, group: Group, tensors: list[dict[str, torch.Tensor]]) -> None:
        """Stored pieces by the hundred."""
        faults = []
        for bulk in group.bulks():
            batches = bulk.batches(tensors)
            self._staging.deliver(bulk.ask, partial(bulk.targets, tensors, batches))
            if batches:
                self._staging.flush()
                faults += [batch.expand() for batch in batches.values()]
            self._phase.advance(bulk.nbytes)
        self._staging.flush()
        if faults:
            self._noted.append((torch.stack(faults), lambda index: self._explain(group, tensors)))

    def _explain(self, group: Group, tensors: list[dict[str, torch.Tensor]]) -> None:
        """Raises CsfError for compressed scales that break a rule."""
        compressed.explain(
            self._staging,
            (
                (piece, place_of(held[piece.suffix], arranged, arranged.slots[piece.suffix], piece))
                for arranged, held in zip(group.weights, tensors, strict=True)
                for piece in arranged.pieces
                if piece.codec is not None
            ),
        )

    def _fill(self, arranged: Arranged, tensors: dict[str, torch.Tensor]) -> None:
        """Stored pieces one by one."""
        for piece in arranged.pieces:
            target = place_of(tensors[piece.suffix], arranged, arranged.slots[piece.suffix], piece)
            region = arranged.regions[piece.suffix] if arranged.regions else None
            if piece.codec is not None:
                compressed.expand(self._staging, piece, target, region)
            else:
                self._staging.fill_region(piece.entries[0], target, region)
            self._phase.advance(sum(entry.nbytes for entry in piece.entries))
        self._staging.flush()

    def _window(self, arranged: Arranged, conversion: Conversion) -> Window | None:
        """The part of a matrix that is encoded; None where every rank holds all of it."""
        if arranged.regions is None:
            return None
        module = self._plan.modules[conversion.target.module]
        return window_of(conversion.target.format, module.format, module.shape or (0, 0), arranged.regions)

    def _place(self, tensors: dict[str, torch.Tensor], arranged: Arranged, conversion: Conversion) -> Place:
        """Where the share of one matrix goes."""
        window = self._window(arranged, conversion)
        shape = self._plan.modules[conversion.target.module].shape or (0, 0)
        regions = within(conversion.target.format, arranged.regions, window or whole(shape), shape)
        return Place(_views(tensors, arranged, conversion), regions, window)


def _spans(arranged: Arranged) -> Iterator[Span]:
    """What `_fill` reads, in order."""
    for piece in arranged.pieces:
        whole = arranged.regions is None or piece.codec is not None
        region = arranged.regions[piece.suffix] if arranged.regions and not whole else None
        yield from (span_of(entry, region) for entry in piece.entries)


def _views(
    tensors: dict[str, torch.Tensor], arranged: Arranged, conversion: Conversion
) -> dict[str, torch.Tensor]:
    return {
        suffix: place_of(tensors[suffix], arranged, slot, conversion)
        for suffix, slot in arranged.slots.items()
        if suffix != "input_scale"
    }


def place_of(tensor: torch.Tensor, arranged: Arranged, slot: Slot, place: Piece | Conversion) -> torch.Tensor:
    """The part of a stacked tensor that one source fills, as a contiguous view."""
    module = arranged.module
    if module.stack == "none":
        return tensor
    if module.stack == "experts":
        tensor = tensor[place.expert]
    if module.parts == 1:
        return tensor
    if slot.scalar:
        return tensor[place.part]
    rows = tensor.shape[0] // module.parts
    return tensor[place.part * rows : (place.part + 1) * rows]
