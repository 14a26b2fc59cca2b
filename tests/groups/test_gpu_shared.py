"""Captured steps over two ranks that share one GPU: the tokens of the same ranks' eager steps."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
PROMPT = "Once upon a time"
BODIES = [
    {"max_tokens": 24, "temperature": 0},
    {"max_tokens": 24, "temperature": 0.8, "top_p": 0.9, "seed": 5},
    {"max_tokens": 24, "temperature": 1.0, "seed": 6},
    {"max_tokens": 12, "temperature": 0, "logprobs": 2},
]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def ranks_of(*words, eager=False, timeout=30):
    """Both ranks of a command."""
    command = [sys.executable, "-m", "tests.groups.one_gpu_rank", *words, "--dtype", "bfloat16"]
    command += ["--device", "cuda:0", "--tp", "2", "--rank-timeout", str(timeout)]
    command += ["--master", "127.0.0.1", "--master-port", str(free_port())]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "EAGER": "yes" if eager else ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    return [subprocess.Popen([*command, "--rank", str(rank)], **pipes) for rank in range(2)]


def said(processes):
    told = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told[0][1][-2000:] + told[1][1][-2000:]
    return told[0][0]


def test_a_lone_reply_is_the_same_captured_and_eager():
    line = ("generate", "demo", PROMPT, "--max-tokens", "24", "--ignore-eos")
    captured, eager = ranks_of(*line), ranks_of(*line, eager=True)
    assert said(captured) == said(eager)


def test_a_rank_that_dies_in_captured_decode_is_named_by_the_other():
    line = ("generate", "demo", PROMPT, "--max-tokens", "3000", "--ignore-eos")
    first, second = ranks_of(*line, timeout=4)
    assert first.stdout.read(8)
    second.kill()
    _, told = first.communicate(timeout=40)
    assert first.returncode == 1
    assert "rank 1" in told, told[-2000:]
    assert "did not come in time to a sum over peer memory" in told, told[-2000:]
    second.communicate()


@contextmanager
def served(eager=False):
    """What a server says to a body."""
    port = free_port()
    processes = ranks_of("serve", "demo", "--port", str(port), eager=eager)

    def ask(body):
        deadline = time.monotonic() + 100
        while True:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                json.dumps({"model": "demo", "prompt": PROMPT, "ignore_eos": True, **body}).encode(),
                {"Content-Type": "application/json"},
            )
            try:
                with urllib.request.urlopen(request, timeout=100) as answer:
                    return json.load(answer)["choices"][0]
            except (urllib.error.URLError, ConnectionError):
                ended = [process for process in processes if process.poll() is not None]
                assert not ended, ended[0].communicate()[1][-3000:]
                assert time.monotonic() < deadline
                time.sleep(0.2)

    try:
        yield ask
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate(timeout=60)


def test_replies_together_are_the_same_captured_and_eager():
    with served() as captured, served(eager=True) as eager, ThreadPoolExecutor(8) as pool:
        both = [list(pool.map(ask, BODIES)) for ask in (captured, eager)]
    assert both[0] == both[1]
