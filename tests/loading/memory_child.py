"""Loads a checkpoint in a process of its own under a hard limit of memory; run by test_memory.py.

    python -m tests.loading.memory_child FOLDER streaming|whole SLACK

Prints the bytes that the load took at its highest point, or "refused" when the limit stopped it.
"""

import re
import resource
import sys
from pathlib import Path

import torch

from intarsia import formats
from intarsia.checkpoint import open_checkpoint
from intarsia.loading.arrange import arrange
from intarsia.loading.weights import load_weights
from intarsia.planning.plan import plan
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of


def status(field):
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", text)[1]) * 1024


def whole_layers(checkpoint):
    """The approach that is not ours: a whole weight in BF16, then its encoding."""
    weights = {}
    with checkpoint.reader() as reader:
        for arranged in arrange(checkpoint).weights:
            if ".mlp.experts." not in arranged.module.name:
                continue
            stack = torch.empty(arranged.module.shape, dtype=torch.bfloat16)
            parts = arranged.module.parts
            rows = stack.shape[1] // parts
            for piece in arranged.pieces:
                place = stack[piece.expert, piece.part * rows : (piece.part + 1) * rows]
                reader.read_into(piece.entries[0], place)
            weights[arranged.module.name] = formats.get("W4A16_NVFP4").encode(stack)
    return weights


def main():
    folder, approach, slack = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    formats.get("W4A16_NVFP4").encode(torch.randn(512, 512, dtype=torch.bfloat16))  # libraries load lazily
    checkpoint = open_checkpoint(folder)
    manifest = apply_recipe("spark", source_of(checkpoint))
    predicted = plan(checkpoint, manifest).ranks[0].peak
    load_weights(Path(folder).with_name("warm"), manifest=None)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before, mapped = status("VmRSS"), status("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + predicted + slack, resource.RLIM_INFINITY))
    try:
        if approach == "streaming":
            weights = load_weights(checkpoint, manifest=manifest)
        else:
            weights = whole_layers(checkpoint)
    except (MemoryError, RuntimeError, OSError, ImportError) as error:  # a library that cannot be mapped too
        print("refused", type(error).__name__)
        return
    print(status("VmHWM") - before, predicted, len(weights))


if __name__ == "__main__":
    main()
