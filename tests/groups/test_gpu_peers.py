"""Sums over the memory of two GPUs of one host."""

import os
import socket
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.gpu


def start(rank, port):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.groups.peers_rank", str(rank), str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_two_processes_sum_over_peer_memory_with_the_bits_of_nccl():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    processes = [start(rank, port) for rank in range(2)]
    for process in processes:
        out, told = process.communicate(timeout=120)
        assert process.returncode == 0, out + told[-3000:]
        assert out.strip() == "600 of 600 sums equal"
