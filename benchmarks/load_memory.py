"""Peak memory of a load, and what lives after ten tokens, against the stored bytes.

    python benchmarks/load_memory.py [--experts 9]

A synthetic checkpoint of GLM-5.3-Flash's geometry (four layers, few experts, about 1.5 GiB) is written, then
loaded in a process of its own. The floor is the bytes the weights have in memory; the bound is that plus the
largest layer.
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path

GIB = 2**30


def measure(folder: str) -> dict[str, float]:
    """Load, run ten tokens, and report bytes; in the process whose peak is measured."""
    import torch

    import intarsia
    from intarsia.loading.arrange import arrange

    torch.set_grad_enabled(False)
    checkpoint = intarsia.open_checkpoint(folder)
    plan = arrange(checkpoint)
    before = peak_bytes()
    model = intarsia.load(checkpoint)
    after_load = peak_bytes()
    model.logits(list(range(1, 11)))
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor):
            storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    layers: dict[str, int] = {}
    for name, entry in checkpoint.tensors.items():
        part = name.split(".layers.", 1)
        layer = part[1].split(".")[0] if len(part) == 2 else name
        layers[layer] = layers.get(layer, 0) + entry.nbytes
    return {
        "file_bytes": checkpoint.weight_bytes,
        "resident_bytes": plan.nbytes,
        "largest_layer": max(layers.values()),
        "load_peak": after_load - before,
        "live_after_ten_tokens": sum(storages.values()),
    }


def peak_bytes() -> int:
    """The highest resident size since this program began (`ru_maxrss` would include its parent's)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experts", type=int, default=9)
    parser.add_argument("--recipe", default="fp4-local")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return 0
    from intarsia.evidence.synthetic import geometry, synthesize

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "checkpoint"
        config = geometry("glm-5.3-flash", layers=4, experts=options.experts, vocabulary=8192)
        synthesize(target, config, recipe=options.recipe, shard_size=256 << 20)
        command = [sys.executable, __file__, "--measure", str(target)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    bound = found["resident_bytes"] + found["largest_layer"]
    for name, value in found.items():
        print(f"{name:24} {value / GIB:7.3f} GiB")
    print(f"{'bound':24} {bound / GIB:7.3f} GiB")
    for name in ("load_peak", "live_after_ten_tokens"):
        ratio = found[name] / found["resident_bytes"]
        print(f"{name} / resident bytes: {ratio:.3f}, within the bound: {found[name] <= bound}")
    return 0 if max(found["load_peak"], found["live_after_ten_tokens"]) <= bound else 1


if __name__ == "__main__":
    sys.exit(main())
