"""`summarize` and `audit` of a 147,661-tensor checkpoint, from headers alone.

    python benchmarks/inspect_audit.py

Writes the headers of nvidia/GLM-5.3-Flash-NVFP4 (names, types and shapes; see tests/data/README.md) as 33
sparse shards to a temporary folder, and runs each task in a process of its own, import included. Targets: 5 s
and 1 GB each. The floor beside them is parsing the same headers with the safetensors library.
"""

import gzip
import json
import subprocess
import sys
import tempfile
import time
from math import prod
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
INVENTORY = DATA / "derived_headers_nvidia_nvfp4.json.gz"
CONFIG = DATA / "nvidia_GLM-5.3-Flash-NVFP4.config.json"
SHARDS = 33
BYTES = {"BF16": 2, "F32": 4, "U8": 1, "F8_E4M3": 1}

TASKS = {
    "safetensors": """
from pathlib import Path
from safetensors import safe_open
count = 0
for path in Path(sys.argv[1]).glob("*.safetensors"):
    with safe_open(path, framework="np") as file:
        for name in file.keys():
            file.get_slice(name).get_shape()
            count += 1
result = f"{count:,} tensors"
""",
    "inspect": """
from intarsia.checkpoint import summarize
summary = summarize(sys.argv[1])
result = f"{summary.tensors:,} tensors, {len(summary.classes)} classes, {len(summary.violations)} violations"
""",
    "audit": """
from intarsia.checkpoint import audit, open_checkpoint
from intarsia.families.registry import family_of
checkpoint = open_checkpoint(sys.argv[1], strict=False)
tensors = family_of(checkpoint.config).tensors
groups = {part: {n for n, s in tensors.items() if s.part == part} for part in ("mtp", "vision")}
report = audit(checkpoint, expected={n: s.shape for n, s in tensors.items()}, optional=groups)
result = f"{report.tensors:,} tensors, {report.modules}, {len(report.violations)} violations"
""",
}

AROUND = """
import resource, sys, time
start = time.perf_counter()
{task}
seconds = time.perf_counter() - start
print(seconds, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, result, sep="|")
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        print(
            f"{'task':12} {'wall s':>7} {'CPU s':>7} {'peak GB':>8}  imports included, targets 5 s and 1 GB"
        )
        for name, task in TASKS.items():
            program = AROUND.format(task=task)
            start = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", program, folder], capture_output=True, text=True, check=True
            )
            wall = time.perf_counter() - start
            _, cpu, peak, result = done.stdout.strip().split("|")
            print(f"{name:12} {wall:7.2f} {float(cpu):7.2f} {float(peak):8.3f}  {result}")


def write(folder: Path) -> None:
    """The inventory as sparse shards with an index and the published configuration."""
    with gzip.open(INVENTORY) as file:
        inventory = json.load(file)
    names = list(inventory)
    size = -(-len(names) // SHARDS)
    weight_map = {}
    for number in range(SHARDS):
        shard = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        header, position = {}, 0
        for name in names[number * size : (number + 1) * size]:
            dtype, shape = inventory[name]
            end = position + prod(shape) * BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
            position = end
            weight_map[name] = shard
        text = json.dumps(header).encode()
        with open(folder / shard, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + position)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_bytes(CONFIG.read_bytes())


if __name__ == "__main__":
    main()
