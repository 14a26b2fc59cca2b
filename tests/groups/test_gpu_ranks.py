"""Ranks on two GPUs, by the commands a user types: the text of one GPU, and an end when one dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
DEVICE = "cuda"
PROMPT = "Once upon a time"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "maximum": 120}},
    "required": ["age"],
    "additionalProperties": False,
}


def start(*words):
    command = [sys.executable, "-m", "intarsia", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )


def generate(dtype, *words, count=24):
    line = ("--max-tokens", str(count), "--ignore-eos", "--dtype", dtype, "--device", DEVICE)
    return start("generate", "demo", PROMPT, *line, *words)


def said(process):
    out, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    return out


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


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


@pytest.mark.parametrize("ways", [["plain", "divided"], ["drafted"]], ids=["plain", "drafted"])
def test_captured_steps_of_two_gpus_have_the_bits_of_eager_ones_with_sums_by_nccl(ways):
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.groups.captured_rank", str(rank), str(port), *ways],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        for rank in range(2)
    ]
    expected = [f"{way}: equal, captured" for way in ways]
    for process in processes:
        out, told = process.communicate(timeout=300)
        assert out.splitlines() == expected, out + told[-3000:]
        assert process.returncode == 0, told[-3000:]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_gpus_write_what_one_writes(dtype):
    processes = [generate(dtype), generate(dtype, "--tp", "2"), generate(dtype, "--tp", "2")]
    alone, together, again = map(said, processes)
    assert again == together
    if dtype == "float32":
        assert together == alone


def test_two_gpus_joined_by_lines_write_it_too():
    ports = [free_port(), free_port()]

    def ring(rank):
        neighbour = f"127.0.0.1:{ports[1 - rank]}"
        place = ("--tp", "2", "--rank", str(rank), "--master-port", str(ports[rank]))
        return generate("float32", *place, "--ring", f"{neighbour},{neighbour}")

    alone, first, second = generate("float32"), ring(0), ring(1)
    assert said(first) == said(alone)
    said(second)


@contextmanager
def served(*words):
    """What a server says to a body."""
    port = free_port()
    server = start("serve", "demo", "--device", DEVICE, "--dtype", "float32", "--port", str(port), *words)

    def ask(body):
        deadline = time.monotonic() + 120
        while True:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                json.dumps({"model": "demo", "prompt": PROMPT, "temperature": 0, **body}).encode(),
                {"Content-Type": "application/json"},
            )
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    return json.load(answer)["choices"][0]["text"]
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None, server.communicate()[1][-3000:]
                assert time.monotonic() < deadline
                time.sleep(0.2)

    try:
        yield ask
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_two_gpus_serve_what_one_serves_with_a_schema_too():
    with served() as alone, served("--tp", "2") as together:
        for body in ({"max_tokens": 40}, {"max_tokens": 40, "guided_json": SCHEMA}, {"max_tokens": 3}):
            text = together(body)
            assert text == alone(body)
            if "guided_json" in body:
                assert set(json.loads(text)) == {"age"}


def test_a_gpu_that_dies_is_named():
    launcher = generate("float32", "--tp", "2", count=3000)
    assert launcher.stdout.read(8)
    os.kill(ranks_of(launcher)[1], signal.SIGKILL)
    _, told = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert "rank 1 was ended by SIGKILL" in told
