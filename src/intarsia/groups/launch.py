"""Ranks of one host: started together, watched, and ended together.

Whoever watches sees every rank's record (`status`), so a rank that died or hangs is named, with what each of
the others was doing. The watching process computes nothing and imports no torch.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO

from intarsia.groups.status import (
    LIFELINE_FD,
    LISTEN_FD,
    LOST,
    STATUS_FILE,
    Reading,
    StatusBoard,
    status_file,
)

POLL = 0.05
STOPPED = 2.0
"""Seconds without a beat after which a process counts as stopped."""
GRACE = 3.0
"""Seconds in which ranks that lost another one may still learn who it was, and in which they may end."""


@dataclass(slots=True)
class _Rank:
    number: int
    process: "subprocess.Popen[bytes]"
    log: IO[bytes] | None
    reading: Reading = field(default_factory=lambda: Reading(0, 0, 0, ""))
    changed: float = 0.0
    beat: float = 0.0


def launch(
    command: Callable[[int, int], Sequence[str]], ranks: int, *, timeout: float, tell: Callable[[str], None]
) -> int:
    """Run `command(rank, port)` for every rank and return the exit code: rank 0's, or 1 when a rank was lost.

    Rank 0 has this process's output; what the others write to standard error is told when they fail.
    `timeout` is how many seconds a rank may stay silent while another waits for it. SIGINT and SIGTERM are
    passed on to rank 0, a second one ends everything.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        path = stack.enter_context(status_file(ranks))
        board = StatusBoard(path, ranks)
        read_end, write_end = os.pipe()
        started: list[_Rank] = []
        stack.callback(os.close, write_end)
        stack.callback(_end, started)
        early = _pass_signals(stack, started)
        for rank in range(ranks):
            environment = os.environ | {STATUS_FILE: str(path), LIFELINE_FD: str(read_end)}
            kept = [read_end]
            if rank == 0:
                environment[LISTEN_FD] = str(listener.fileno())
                kept.append(listener.fileno())
            log = None if rank == 0 else stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(
                command(rank, listener.getsockname()[1]),
                env=environment,
                pass_fds=kept,
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=None if rank == 0 else subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C comes here alone, and is passed on in order
            )
            started.append(_Rank(rank, process, log, changed=time.monotonic()))
        os.close(read_end)
        listener.close()
        for asked in started if len(early) > 1 else started[: len(early)]:
            asked.process.send_signal(early[-1])
        return _watch(started, board, timeout, tell)


def _watch(ranks: Sequence[_Rank], board: StatusBoard, timeout: float, tell: Callable[[str], None]) -> int:
    ended_at = 0.0
    while True:
        now = time.monotonic()
        for rank in ranks:
            reading = board.read(rank.number)
            if reading.beats != rank.reading.beats:
                rank.beat = now
            if reading != rank.reading:
                rank.changed = now
            rank.reading = reading
        gone = [rank for rank in ranks if rank.process.poll() is not None]
        if len(gone) == len(ranks) or (gone and ended_at and now - ended_at > GRACE):
            return _verdict(ranks, tell)
        failed = [rank for rank in gone if rank.process.returncode]
        if any(not rank.reading.words.startswith(LOST) for rank in failed):
            # the others see it too: a moment for their own messages, and for equal refusals
            time.sleep(4 * POLL)
            return _verdict(ranks, tell)
        if gone and not ended_at:
            ended_at = now
        hanging = _hanging(ranks, now, timeout)
        if hanging:
            tell(f"intarsia: {_names(hanging)} silent for {timeout:g} s while another rank waits")
            _tell_states(ranks, tell)
            return 1
        time.sleep(POLL)


def _verdict(ranks: Sequence[_Rank], tell: Callable[[str], None]) -> int:
    """The exit code, and who is to blame."""
    codes = [rank.process.poll() for rank in ranks]
    if all(code == 0 for code in codes):
        return 0
    first = codes[0]
    if first and first > 0 and all(code in (first, None) for code in codes[1:]) and not _lost(ranks[0]):
        return first  # refused by all ranks, or by rank 0: its own message has been told
    blamed = [rank for rank in ranks if rank.process.poll() not in (None, 0) and not _lost(rank)] or [
        rank for rank in ranks if rank.process.poll() is not None
    ]
    for rank in blamed:
        tell(f"intarsia: rank {rank.number} {_fate(rank)}")
        for line in _last_lines(rank):
            tell(f"  rank {rank.number}: {line}")
    _tell_states(ranks, tell)
    return 1


def _lost(rank: _Rank) -> bool:
    return rank.reading.words.startswith(LOST)


def _hanging(ranks: Sequence[_Rank], now: float, timeout: float) -> list[_Rank]:
    """Ranks that another one has waited for, and that showed no sign of life all that time."""
    waited = [rank for rank in ranks if rank.reading.waits and now - rank.changed > timeout]
    if not waited:
        return []
    most = max(rank.reading.entered for rank in waited)
    silent = [rank for rank in ranks if rank.process.poll() is None and now - rank.changed > timeout]
    behind = [rank for rank in silent if rank.reading.entered < most]
    stopped = [rank for rank in silent if rank.reading.beats and now - rank.beat > STOPPED]
    # all in the same exchange and alive: it is the line between them that hangs
    return behind or stopped or (waited if len(silent) == len(ranks) else [])


def _names(ranks: Sequence[_Rank]) -> str:
    numbers = " and ".join(str(rank.number) for rank in ranks)
    return f"rank {numbers} {'are' if len(ranks) > 1 else 'is'}"


def _fate(rank: _Rank) -> str:
    code = rank.process.returncode
    if code is None:
        return "is running"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _tell_states(ranks: Sequence[_Rank], tell: Callable[[str], None]) -> None:
    for rank in ranks:
        tell(f"  rank {rank.number}: {_fate(rank)}, {rank.reading.doing}")


def _last_lines(rank: _Rank) -> list[str]:
    if rank.log is None:
        return []
    rank.log.seek(0)
    return rank.log.read().decode(errors="replace").strip().splitlines()[-12:]


def _pass_signals(stack: ExitStack, ranks: Sequence[_Rank]) -> list[int]:
    """Pass signals on from now on; returns the list of those that came before rank 0 was there."""
    seen: list[int] = []
    early: list[int] = []

    def hand_on(number: int, frame: object) -> None:
        seen.append(number)
        if not ranks:
            early.append(number)
        for rank in ranks if len(seen) > 1 else ranks[:1]:
            if rank.process.poll() is None:
                rank.process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        stack.callback(signal.signal, number, signal.signal(number, hand_on))
    return early


def _end(ranks: Sequence[_Rank]) -> None:
    """End every rank that still runs: asked first, then made to."""
    running = [rank.process for rank in ranks if rank.process.poll() is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + GRACE
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def rank_command(words: Sequence[str], rank: int, port: int) -> list[str]:
    """The command line of one rank: the one that was given, and its place."""
    place = ["--rank", str(rank), "--master", "127.0.0.1", "--master-port", str(port)]
    return [sys.executable, "-m", "intarsia", *words, *place]
