"""Every path of the engine at least once, each reply compared with the one it has alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from intarsia.core.progress import SILENT, Progress
from intarsia.engine.lanes.lane import Lane
from intarsia.engine.requests import Request
from intarsia.engine.step import Part
from intarsia.evidence.checks.bench import GREEDY, PAGE, SAMPLED, Bench
from intarsia.evidence.checks.coverage import CheckReport, Coverage
from intarsia.evidence.checks.memory import cover_kept_states, cover_pressure
from intarsia.models.glm5_next.model import Glm5NextModel

WIDEST = 16
"""Rows of one stream in a step, up to which every width is tried."""
PARTIAL = 8
"""Widths up to which every number of kept rows is tried."""
CHUNKS = (64, 128, 256, 512)
STREAMS = 8
REPLY = 24


def check_lanes_cover(model: Glm5NextModel, progress: Progress = SILENT) -> CheckReport:
    """Drive engines so that every cell is taken: see the groups of the table for what there is."""
    coverage = Coverage("lanes-cover", progress)
    dense = model.config.index_topk + model.config.index_kpool - 1
    bench = Bench(model, coverage, window=max(1024, dense + 512))
    parts = {
        "window widths": cover_widths,
        "streams": cover_streams,
        "copies": cover_copies,
        "chunks": cover_chunks,
        "kept states": cover_kept_states,
        "too little room": cover_pressure,
    }
    for name, cover in parts.items():
        with coverage.part(name):
            cover(bench)
    return coverage.report()


def windows() -> list[tuple[int, int]]:
    """(rows of a step, rows of it that are kept): every pair of narrow steps, the ends of wide ones."""
    narrow = [(width, kept) for width in range(1, PARTIAL + 1) for kept in range(1, width + 1)]
    wide = [(width, kept) for width in range(PARTIAL + 1, WIDEST + 1) for kept in (1, width)]
    return narrow + wide


def cover_widths(bench: Bench) -> None:
    """Every window width with right and wrong guesses, across the first sparse row and across pages."""
    coverage, config = bench.coverage, bench.model.config
    dense = config.index_topk + config.index_kpool - 1
    plan = windows()
    coverage.expect("window width", range(1, WIDEST + 1))
    coverage.expect("rows kept of a window", (f"{kept} of {width}" for width, kept in plan))
    coverage.expect("dense to sparse", ("between steps", "inside a window", "in a prompt"))
    coverage.expect("page boundary", ("between steps", "inside a window"))
    single = [(1, 1)] * 3
    cases = (
        ("greedy", GREEDY, max(3, dense - 70), plan),
        ("sampled", SAMPLED, max(3, dense - 9), plan),
        # Steps that begin exactly at an edge.
        ("sparse", GREEDY, dense, single),
        ("page", GREEDY, -(-dense // PAGE) * PAGE, single),
    )
    for name, sampling, length, steps in cases:
        reply = sum(kept for _, kept in steps) + 1
        request = Request(name, bench.prompt(1, length), sampling=sampling, max_tokens=reply)
        script = _Script(steps, bench.truth(request), config.vocab_size)
        engine = bench.engine(
            script.guess, _watch_widths(coverage, dense), drafts=WIDEST - 1, copy_drafts=0, streams=1
        )
        bench.run(engine, [request])
        bench.check_clean(engine, f"{name} windows")


class _Script:
    """Guesses that make each step a given width and keep a given number of its rows."""

    def __init__(self, plan: Sequence[tuple[int, int]], truth: Sequence[int], vocab_size: int) -> None:
        self._plan = list(plan)
        self._truth = truth
        self._vocab_size = vocab_size

    def guess(self, lane: Lane, most: int) -> list[int] | None:
        """Right guesses up to the first row that is not to be kept."""
        if not self._plan:
            return []
        width, kept = self._plan.pop(0)
        begin = len(lane.reply.tokens)
        right = list(self._truth[begin : begin + width - 1])
        if kept < width and kept <= len(right):
            right[kept - 1] = (right[kept - 1] + 1) % self._vocab_size
        return right[:most]


def _watch_widths(coverage: Coverage, dense: int) -> Callable[[Sequence[tuple[Part, int]]], None]:
    def watch(step: Sequence[tuple[Part, int]]) -> None:
        for part, kept in step:
            if not part.recurrent:
                if part.position < dense < part.end:
                    coverage.took("dense to sparse", "in a prompt")
                continue
            width = len(part.tokens)
            coverage.took("window width", width)
            coverage.took("rows kept of a window", f"{kept} of {width}")
            for group, edge in (("dense to sparse", dense), ("page boundary", (part.end - 1) // PAGE * PAGE)):
                if part.position < edge < part.end:
                    coverage.took(group, "inside a window")
                elif part.position == edge > 0:
                    coverage.took(group, "between steps")

    return watch


def cover_streams(bench: Bench) -> None:
    """1 to 8 streams that write together, with and without guesses; guesses of the MTP layer where there is
    one."""
    coverage = bench.coverage
    coverage.expect("streams, plain", range(1, STREAMS + 1))
    coverage.expect("streams, guessing", range(1, STREAMS + 1))
    if bench.model.weights.mtp is not None:
        coverage.expect("guesses of the MTP layer", ("kept", "taken back"))
    for guessing in (False, True):
        group = "streams, guessing" if guessing else "streams, plain"

        def watch(step: Sequence[tuple[Part, int]], group: str = group) -> None:
            writing = [(part, kept) for part, kept in step if part.verifies]
            if writing:
                coverage.took(group, len(writing))
            for part, kept in writing:
                if len(part.tokens) > 1:
                    coverage.took("guesses of the MTP layer", "kept" if kept > 1 else "taken back")

        engine = bench.engine(watch=watch, streams=STREAMS, copy_drafts=0)
        readers = []
        for index in range(STREAMS):
            # One more in every step, each long enough to still write when the last one comes.
            request = Request(
                f"{group} {index}",
                bench.prompt(10 + index, 20 + 3 * index),
                sampling=(GREEDY, SAMPLED)[index % 2],
                max_tokens=(STREAMS + 2) * engine.settings.step_rows,
                draft=guessing,
            )
            readers.append(bench.submit(engine, request))
            engine.step()
        bench.finish(engine)
        for reader in readers:
            bench.check(reader)
        bench.check_clean(engine, group)


def cover_copies(bench: Bench) -> None:
    """Copied guesses, from the prompt and from the reply, right and wrong."""
    coverage = bench.coverage
    coverage.expect("copied guesses", ("of the prompt, wrong", "of the reply, right"))
    token, other = 5, 6
    repeated = (token,) * 8 + (other,)

    def watch(step: Sequence[tuple[Part, int]]) -> None:
        for part, kept in step:
            if part.verifies and len(part.tokens) > 1:
                if part.tokens[1] == other and kept == 1:
                    coverage.took("copied guesses", "of the prompt, wrong")
                if part.tokens[1] == token and kept > 1:
                    coverage.took("copied guesses", "of the reply, right")

    engine = bench.engine(watch=watch, drafts=0, copy_drafts=4)
    prompt = bench.prompt(2, 30) + repeated + bench.prompt(3, 30)
    requests = [
        Request("copies", prompt, max_tokens=40, logit_bias={token: 100.0}),
        Request("no copies", prompt, max_tokens=REPLY),
    ]
    bench.run(engine, requests)
    bench.check_clean(engine, "copies")


def cover_chunks(bench: Bench) -> None:
    """A long prompt in pieces of every size, beside a stream that goes on writing and beside another
    prompt."""
    coverage = bench.coverage
    coverage.expect("chunk", CHUNKS)
    coverage.expect("prompts in a step", (1, 2, 3))
    coverage.expect("prompt pieces", ("beside a writing stream", "alone"))
    for chunk in CHUNKS:

        def watch(step: Sequence[tuple[Part, int]], chunk: int = chunk) -> None:
            prompts = [part for part, _ in step if not part.recurrent]
            if prompts:
                coverage.took("prompts in a step", len(prompts))
                beside = len(prompts) < len(step)
                coverage.took("prompt pieces", "beside a writing stream" if beside else "alone")
                if max(len(part.tokens) for part in prompts) == chunk:
                    coverage.took("chunk", chunk)

        engine = bench.engine(watch=watch, chunk=chunk, prompt_rows=chunk, kept_bytes=0)
        writer = bench.submit(engine, Request("writer", bench.prompt(4, 9), max_tokens=REPLY, draft=False))
        engine.step()
        long = Request(f"long in {chunk}", bench.prompt(5, 1000), max_tokens=4)
        short = [replace(long, id=f"short {index}", tokens=bench.prompt(6 + index, 30)) for index in range(2)]
        readers = [bench.submit(engine, request) for request in (long, *short)]
        bench.finish(engine)
        for reader in [writer, *readers]:
            bench.check(reader)
        bench.check_clean(engine, f"chunks of {chunk}")
