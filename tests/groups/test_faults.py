"""The fault table, with the processes a user starts: who is to blame is told in time, and nobody is left."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

FAULTS = Path(__file__).parent / "faults"
SILENCE = 5.0
"""--rank-timeout: a rank may be silent so long while another one waits."""
SLACK = 8.0
"""Seconds beyond the stated time that a busy machine may take."""
LOAD, PROMPT, DECODE = "reads layers", "step at token 0", r"step at token (?!0$)"
GENERATE = ("generate", "demo", "Once upon a time", "--max-tokens", "400", "--ignore-eos")


def command(*words):
    return [sys.executable, "-m", "intarsia", *GENERATE, "--rank-timeout", str(SILENCE), *words]


@pytest.fixture
def environment(tmp_path):
    """What ranks are started with, and how a fault is put into one."""
    path = os.pathsep.join(filter(None, [str(FAULTS), os.environ.get("PYTHONPATH")]))
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "FAULT_AT": str(tmp_path / "at")}


def with_fault(environment, rank, pattern, count, deed):
    return environment | {"FAULT": f"{rank}|{pattern}|{count}|{deed}"}


def seconds_since(environment):
    return time.time() - float(Path(environment["FAULT_AT"]).read_text())


def left_behind(environment):
    """Processes of this test that still run."""
    mark = f"FAULT_AT={environment['FAULT_AT']}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" "))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("pattern", "count", "deed", "verdict", "doing"),
    [
        (LOAD, 3, "kill", "rank 1 was ended by SIGKILL", "reads layers.0."),
        (LOAD, 3, "raise", "rank 1 ended with exit code 1", "reads layers.0."),
        (PROMPT, 6, "kill", "rank 1 was ended by SIGKILL", "step at token 0"),
        (DECODE, 6, "kill", "rank 1 was ended by SIGKILL", "step at token"),
        (DECODE, 6, "hang", "rank 1 is silent for 5 s while another rank waits", "step at token"),
        (DECODE, 6, "stop", "rank 1 is silent for 5 s while another rank waits", "step at token"),
    ],
    ids=["dies-in-load", "raises-in-load", "dies-in-prompt", "dies-in-decode", "hangs", "stopped"],
)
def test_a_watched_rank_that_fails_is_named_with_what_all_were_doing(
    environment, pattern, count, deed, verdict, doing
):
    started = subprocess.Popen(
        command("--tp", "2"),
        env=with_fault(environment, 1, pattern, count, deed),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _, told = started.communicate(timeout=90)
    # a second to see it, three to end the others
    assert seconds_since(environment) < 4 + (SILENCE if deed in ("hang", "stop") else 0) + SLACK
    assert started.returncode == 1
    assert f"intarsia: {verdict}" in told
    states = [line for line in told.splitlines() if re.match(r"  rank [01]: (is running|was|ended)", line)]
    assert len(states) == 2, told
    assert doing in states[1]
    assert "exchange" in states[0]
    if deed == "raise":
        assert "rank 1: " in told
        assert "the disk is gone" in told
    assert left_behind(environment) == []


@pytest.mark.parametrize(("tp", "rank", "count", "deed"), [(2, 0, 1, "hang"), (3, 2, 2, "stop")])
def test_a_rank_that_hangs_while_maxima_are_exchanged_is_named(environment, tp, rank, count, deed):
    """Converting while loading, every rank has its own share of a matrix that has one scale."""
    words = ["quality", "demo", "--manifest", "nvfp4-experts", "--no-layers", "--tokens", "1x32"]
    fault = with_fault(environment, rank, "reading weights", count, deed) | {"FAULT_SIGN": "enter"}
    started = subprocess.run(
        [sys.executable, "-m", "intarsia", *words, "--tp", str(tp), "--rank-timeout", str(SILENCE)],
        env=fault,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert seconds_since(environment) < SILENCE + 4 + SLACK
    assert started.returncode == 1
    # What it sent before may have reached one of the others and not yet another, who is then silent too.
    told = re.search(r"intarsia: rank ([\d, and]+) (?:is|are) silent for 5 s while another", started.stderr)
    assert told is not None, started.stderr
    assert str(rank) in re.findall(r"\d+", told[1])
    assert len(re.findall(r"\d+", told[1])) < tp
    states = re.findall(
        r"  rank (\d): is running, (in|after) exchange (\d+); reading weights", started.stderr
    )
    assert [int(number) for number, _, _ in states] == list(range(tp)), started.stderr
    at = int(states[rank][2])  # its own numbers are sent already: the others may be one exchange further
    assert {int(exchange) for _, _, exchange in states} <= {at, at + 1}
    assert left_behind(environment) == []


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize("joined", ["master", "ring"])
def test_without_a_watcher_the_ranks_themselves_name_the_one_that_died(environment, joined):
    ports = [free_port(), free_port()]
    started = []
    for rank in range(2):
        place = [
            "--tp",
            "2",
            "--rank",
            str(rank),
            "--master-port",
            str(ports[rank if joined == "ring" else 0]),
        ]
        if joined == "ring":
            place += ["--ring", f"127.0.0.1:{ports[1 - rank]},127.0.0.1:{ports[1 - rank]}"]
        started.append(
            subprocess.Popen(
                command(*place),
                env=with_fault(environment, 1, DECODE, 6, "kill"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    _, told = started[0].communicate(timeout=90)
    assert seconds_since(environment) < SILENCE + 2 + SLACK
    assert started[0].returncode == 1
    assert "intarsia: rank 1: " in told
    assert "rank 0 in exchange" in told
    assert "step at token" in told
    started[1].communicate(timeout=30)
    assert left_behind(environment) == []
