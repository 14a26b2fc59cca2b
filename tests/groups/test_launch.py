"""Watched ranks: whoever dies or hangs is named in time, everything ends, and nobody is left behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from intarsia.groups.launch import launch, rank_command
from intarsia.groups.status import RECORD, SharedStatus, StatusBoard, status_file

# What a rank does, in a process that imports neither torch nor a model.
PREFACE = """
import os, sys, time, signal
from intarsia.groups.lifeline import end_with_launcher
from intarsia.groups.status import LOST, STATUS_FILE, SharedStatus
rank = int(sys.argv[1])
status = SharedStatus(os.environ[STATUS_FILE], rank)
end_with_launcher()
status.tell("computes layer 3")

def wait_for_rank_0():
    # Its record comes first and begins with how many exchanges it has entered.
    while not any(open(os.environ[STATUS_FILE], "rb").read(8)):
        status.alive()
        time.sleep(0.01)
"""


def run(body, ranks=3, timeout=1.0):
    """The exit code, what was told, and the seconds it took."""
    told, begin = [], time.monotonic()
    code = launch(
        lambda rank, port: [sys.executable, "-c", PREFACE + body, str(rank)],
        ranks,
        timeout=timeout,
        tell=told.append,
    )
    return code, "\n".join(told), time.monotonic() - begin


def test_ranks_that_end_well_end_well():
    assert run("status.enter(); status.leave()")[:2] == (0, "")


@pytest.mark.parametrize(
    ("death", "fate"),
    [("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"), ("sys.exit(7)", "exit code 7")],
)
def test_a_rank_that_dies_is_named_with_what_the_others_did(death, fate):
    body = f"if rank == 1:\n    wait_for_rank_0()\n    {death}\nstatus.enter(); time.sleep(60)"
    code, told, seconds = run(body)
    assert code == 1
    assert told.startswith("intarsia: rank 1 ")
    assert fate in told.splitlines()[0]
    assert "rank 0: is running, in exchange 1; computes layer 3" in told
    assert seconds < 20


def test_the_last_words_of_a_rank_are_told():
    _, told, _ = run("if rank == 2: sys.exit('no such tensor')\nstatus.enter(); time.sleep(60)")
    assert "rank 2: no such tensor" in told


def test_a_rank_that_hangs_is_named():
    code, told, seconds = run("if rank != 2: status.enter()\ntime.sleep(60)", timeout=0.7)
    assert code == 1
    assert told.splitlines()[0] == "intarsia: rank 2 is silent for 0.7 s while another rank waits"
    assert "rank 2: is running, after exchange 0; computes layer 3" in told
    assert seconds < 20


def test_a_rank_that_is_slow_but_shows_life_is_waited_for():
    body = """
if rank == 1:
    for _ in range(12):
        time.sleep(0.15)
        status.alive()
else:
    status.enter()
    time.sleep(1.8)
    status.leave()
"""
    assert run(body, timeout=1.0)[0] == 0


def test_ranks_that_lost_another_one_are_not_blamed():
    body = """
if rank == 0:
    status.tell(LOST + ": connection closed")
    sys.exit(1)
time.sleep(0.5)
if rank == 2: os.kill(os.getpid(), signal.SIGKILL)
status.enter(); time.sleep(60)
"""
    code, told, _ = run(body)
    assert code == 1
    assert told.splitlines()[0] == "intarsia: rank 2 was ended by SIGKILL"


def test_a_refusal_of_all_ranks_is_rank_zeros_to_tell():
    assert run("sys.exit(2)")[:2] == (2, "")


def test_no_rank_outlives_the_process_that_started_it(tmp_path):
    body = PREFACE + f"open({str(tmp_path)!r} + '/%d' % rank, 'w').write(str(os.getpid())); time.sleep(60)"
    script = (
        "import sys; from intarsia.groups.launch import launch; "
        f"launch(lambda r, p: [sys.executable, '-c', {body!r}, str(r)], 2, timeout=30, tell=print)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < 2 or not all(path.read_text() for path in tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    launcher.kill()
    launcher.wait()
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a rank is left behind"
        time.sleep(0.05)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_signal_reaches_rank_zero_alone():
    body = """
if rank == 0:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)
"""
    before = signal.getsignal(signal.SIGTERM)
    assert run(body)[:2] == (0, "")
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_comes_while_ranks_are_started_reaches_rank_zero(monkeypatch):
    """Before the first has been started, and before the last."""
    start = subprocess.Popen
    for moment in (0, 2):
        begun = []

        def interrupted(*arguments, moment=moment, begun=begun, **options):
            if len(begun) == moment:
                os.kill(os.getpid(), signal.SIGTERM)
            begun.append(1)
            return start(*arguments, **options)

        monkeypatch.setattr(subprocess, "Popen", interrupted)
        code, told, seconds = run("time.sleep(60)")
        assert code == 1
        assert told.splitlines()[0] == "intarsia: rank 0 was ended by SIGTERM"
        assert seconds < 20


def test_two_signals_before_any_rank_is_there_go_to_all_of_them(monkeypatch):
    """As two later ones do. SIGINT, since whoever ends is asked by SIGTERM after all."""
    start, sent = subprocess.Popen, []

    def interrupted(*arguments, **options):
        if not sent:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        process = start(*arguments, **options)
        send, own = process.send_signal, []
        sent.append(own)
        monkeypatch.setattr(process, "send_signal", lambda number: (own.append(number), send(number)))
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    assert run("time.sleep(60)")[0] == 1
    assert len(sent) > 1
    assert all(own[0] == signal.SIGINT for own in sent)


def test_records_are_apart_and_gone_at_the_end():
    with status_file(2) as path:
        assert path.stat().st_size == 2 * RECORD
        first, second = SharedStatus(path, 0), SharedStatus(path, 1)
        first.tell("x" * 600)
        second.enter()
        board = StatusBoard(path, 2)
        assert (board.read(1).entered, board.read(1).waits, board.read(1).words) == (1, True, "")
        assert (board.read(0).signs, board.read(0).waits) == (1, False)
        assert set(board.read(0).words) == {"x"}
    assert not os.path.exists(path)


def test_every_rank_has_the_line_that_was_given_and_its_place():
    line = rank_command(["serve", "demo", "--tp", "2"], 1, 4711)
    assert line[1:3] == ["-m", "intarsia"]
    assert line[3:] == [
        "serve",
        "demo",
        "--tp",
        "2",
        "--rank",
        "1",
        "--master",
        "127.0.0.1",
        "--master-port",
        "4711",
    ]
