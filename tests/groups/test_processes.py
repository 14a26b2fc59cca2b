"""Ranks as processes, by the command a user types."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def start(*words):
    command = [sys.executable, "-m", "intarsia", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )


def ranks_of(launcher):
    """The ranks' processes by number."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            words = (folder / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if parent == str(launcher.pid) and "--rank" in words:
            found[int(words[words.index("--rank") + 1])] = int(folder.name)
    return found


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_gpus_write_what_one_writes(dtype):
    line = [
        "generate",
        "demo",
        "Once upon a time",
        "--max-tokens",
        "24",
        "--device",
        "cuda",
        "--dtype",
        dtype,
    ]
    one, two = start(*line), None
    alone, _ = one.communicate(timeout=300)
    two = start(*line, "--tp", "2")
    together, told = two.communicate(timeout=300)
    assert two.returncode == 0, told
    if dtype == "float32":
        assert together == alone
    again, _ = start(*line, "--tp", "2").communicate(timeout=300)
    assert again == together


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_gpu_that_dies_is_named():
    launcher = start(
        "generate", "demo", "Once", "--tp", "2", "--device", "cuda", "--max-tokens", "3000", "--ignore-eos"
    )
    assert launcher.stdout.read(8)
    os.kill(ranks_of(launcher)[1], signal.SIGKILL)
    _, told = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert "rank 1 was ended by SIGKILL" in told
