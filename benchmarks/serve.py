"""A server of its own under each load profile, on the demo by default.

    python benchmarks/serve.py [CHECKPOINT] [--profile chat|agent|long ...] [--clients N ...] [--out FILE]

Starts `intarsia serve` on a free loopback port for every profile and number of clients, so that no run finds
what another kept, measures it with `intarsia bench serve` and prints one JSON line each. Targets on a CPU:
eight clients get at least three times the throughput of one; an agent's cached share is above one half.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

START_LINE = '"event":"listening"'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", nargs="?", default="demo")
    parser.add_argument("--profile", nargs="+", default=["chat", "agent", "long"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--scale", type=float, default=0.5, help="factor on prompt sizes")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="further words for the server")
    parser.add_argument("--out", type=Path, help="file for all reports as one JSON list")
    asked = parser.parse_args()
    reports = []
    for profile in asked.profile:
        for clients in asked.clients:
            report = {"machine": machine(), "command": sys.argv, **measured(asked, profile, clients)}
            reports.append(report)
            print(json.dumps(report), flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps(reports, indent=2) + "\n")
    return 0


def measured(asked: argparse.Namespace, profile: str, clients: int) -> dict:
    """One run against a fresh server."""
    words = [sys.executable, "-m", "intarsia", "serve", asked.checkpoint, "--port", "0", *asked.serve]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        line = next((line for line in server.stderr if START_LINE in line), None)
        if line is None:
            raise SystemExit(f"the server did not start: {' '.join(words)}")
        # what the server logs from here on is of no interest, but must not fill the pipe
        drain = subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL)
        load = [
            sys.executable,
            "-m",
            "intarsia",
            "bench",
            "serve",
            "--json",
            "--url",
            json.loads(line)["url"],
        ]
        load += ["--profile", profile, "--clients", str(clients), "--scale", str(asked.scale)]
        load += ["--conversations", str(asked.conversations), "--tokens", str(asked.tokens)]
        done = subprocess.run(load, capture_output=True, text=True, check=False)
        return json.loads(done.stdout)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
        drain.wait(10)


def machine() -> str:
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


if __name__ == "__main__":
    sys.exit(main())
