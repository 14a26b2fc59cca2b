"""Loading with and without conversion: seconds, and the measured peak of memory against the planned one.

    python benchmarks/convert.py PATH --recipe spark       # a checkpoint, or the word demo
    python benchmarks/convert.py --layer --device cuda:0   # one MTP layer of GLM-5.3-Flash's geometry

`--layer` writes a synthetic source of 15.5 GB to --folder: 288 experts of three matrices of 4096 x 2048 in
BF16, and the small rest of a network with one layer more. It is loaded as stored, and with the MTP layer's
experts in NVFP4 and all projections in MXFP8. The source is in the page cache when it is read, as it has just
been written; `--cold` drops it from there before each load where the system allows that.

`--phases` adds one more load of each kind and says where its seconds went: the reading thread's (in reads,
and waiting for a free buffer), and the caller's (waiting for bytes, waiting for the device at the end, and
the rest, which is telling the device what to do). Only a GPU has a reading thread.

`--warm` loads again and again in one process instead, and prints a line of seconds and phases for each load:
what a load takes where pinned memory, the device's memory and the kernels are there already.

The floor beside the figures is reading the same bytes into one buffer. Runs alternate, so that drift shows,
each in a process of its own, so that its peak of memory is its own; the median counts. There is no peer here:
other loaders hold a whole layer before they encode it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from intarsia.checkpoint import Checkpoint, open_checkpoint
from intarsia.checkpoint.streamed import Fixed, StreamedShard, tensor_bytes
from intarsia.checkpoint.write import json_bytes
from intarsia.core.progress import SILENT
from intarsia.core.provenance import code, machine
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.inventory import inventory
from intarsia.kernels.encode import encode
from intarsia.loading.measure import Meter
from intarsia.loading.staging import Staging
from intarsia.loading.weights import Loader, load_weights, prepared
from intarsia.planning.plan import plan
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of

BUFFER = 16 << 20


def layer_config(experts: int, hidden: int, width: int) -> dict[str, Any]:
    """A network of one small linear-attention layer and an MTP layer of the real geometry."""
    text = {
        "model_type": "glm5_next_text", "hidden_size": hidden, "num_hidden_layers": 1, "vocab_size": 1024,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "layer_types": ["linear_attention"], "mlp_layer_types": ["dense"], "first_k_dense_replace": 1,
        "indexer_types": ["full"], "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "qk_head_dim": 256,
        "v_head_dim": 256, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "index_kpool": 4,
        "linear_attn_config": {
            "num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
        },
        "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20, "routed_scaling_factor": 2.5,
        "swiglu_limit": 10.0, "index_share_for_mtp_iteration": True, "intermediate_size": 4096,
        "moe_intermediate_size": width, "n_routed_experts": experts,
        "num_experts_per_tok": min(8, experts), "n_shared_experts": 1, "num_nextn_predict_layers": 1,
    }  # fmt: skip
    return {"model_type": "glm5_next", "text_config": text}


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(one_load(options)))
        return
    if options.explain:
        print(json.dumps(phases(options)))
        return
    with ExitStack() as stack:
        recipe = options.recipe
        if options.layer:
            folder = options.folder or stack.enter_context(tempfile.TemporaryDirectory())
            checkpoint, recipe = write_layer(Path(folder) / "layer", options), "spark"
        else:
            checkpoint = open_checkpoint(options.path)
        if options.warm:
            in_this_process(checkpoint, recipe, options)
            return
        result = measure(checkpoint, recipe, options)
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        Path(options.out).write_text(text + "\n")


def measure(checkpoint: Checkpoint, recipe: str, options: argparse.Namespace) -> dict[str, Any]:
    """Alternating loads of both kinds, and the floor."""
    forms = {"as stored": "", "converted": recipe}
    seconds: dict[str, list[float]] = {"floor": [], **{name: [] for name in forms}}
    memory: dict[str, dict[str, int]] = {}
    for _ in range(options.repeat):
        drop(checkpoint, options.cold)
        seconds["floor"].append(read_only(checkpoint))
        for name, chosen in forms.items():
            drop(checkpoint, options.cold)
            found = in_a_process(checkpoint.path, chosen, options)
            seconds[name].append(found.pop("seconds"))
            before = memory.get(name, found)
            memory[name] = {key: max(value, before[key]) for key, value in found.items()}
    explained = {}
    if options.phases:
        explained = {
            name: in_a_process(checkpoint.path, chosen, options, "--explain")
            for name, chosen in forms.items()
        }
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "what": "loading with and without conversion",
        "source": f"{checkpoint.path.name}, {checkpoint.weight_bytes:,} bytes",
        "device": options.device,
        "machine": {"processor": machine().processor, "accelerators": machine().accelerators},
        "code": {"version": code().version, "commit": code().commit, "torch": torch.__version__},
        "cache": "dropped before each load" if options.cold else "page cache warm",
        "budget": options.budget,
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "median_seconds": median,
        "converted_over_as_stored": median["converted"] / median["as stored"],
        "gigabytes_a_second": {name: checkpoint.weight_bytes / value / 1e9 for name, value in median.items()},
        "memory": memory,
        "measured_over_planned_peak": {
            name: item["measured_peak"] / item["planned_peak"] for name, item in memory.items()
        },
        "phases": explained,
        "not_run": ["no other loader was run beside it", "the loaded weights were not run"],
    }


def in_this_process(checkpoint: Checkpoint, recipe: str, options: argparse.Namespace) -> None:
    """Alternating loads of both kinds, a line each; the first of each kind finds nothing prepared."""
    options.path = str(checkpoint.path)
    print(
        f"{checkpoint.weight_bytes:,} bytes; floor {read_only(checkpoint):.3f} s with one thread", flush=True
    )
    for _ in range(options.repeat + 1):
        seconds = {}
        for name, chosen in (("as stored", ""), ("converted", recipe)):
            options.recipe = chosen
            found = phases(options)
            seconds[name] = sum(found[part] for part in ("headers", "start", "load", "device_after"))
            rounded = {part: round(value, 3) for part, value in found.items()}
            print(f"{name}: {seconds[name]:.3f} s, {json.dumps(rounded)}", flush=True)
        print(f"converted over as stored: {seconds['converted'] / seconds['as stored']:.3f}", flush=True)


def in_a_process(path: Path, recipe: str, options: argparse.Namespace, what: str = "--one") -> dict[str, Any]:
    """One load in a process of its own."""
    command = [sys.executable, __file__, str(path), what, "--recipe", recipe, "--device", options.device]
    command += ["--budget", str(options.budget), "--threads", str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def one_load(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds and memory of one load; libraries and the device's context are there before the clock runs."""
    device = torch.device(options.device)
    checkpoint = open_checkpoint(options.path)
    manifest = apply_recipe(options.recipe, source_of(checkpoint)) if options.recipe else None
    budget = options.budget if manifest is not None else None
    planned = plan(checkpoint, manifest, device=device.type, budget=budget).ranks[0]
    warm_up(device)
    meter = Meter(device)
    begin = time.perf_counter()
    weights = load_weights(checkpoint, manifest=manifest, device=device, budget=budget)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - begin
    found = meter.read(sum(weight.nbytes for weight in weights.values()))
    return {
        "seconds": seconds,
        "weights": found.weights,
        "planned_peak": planned.peak,
        "measured_peak": found.peak,
        "planned_beside": planned.peak - planned.weights,
        "measured_beside": found.working,
    }


def phases(options: argparse.Namespace) -> dict[str, Any]:
    """Where the seconds of one load go."""
    device = torch.device(options.device)
    checkpoint = open_checkpoint(options.path)
    manifest = apply_recipe(options.recipe, source_of(checkpoint)) if options.recipe else None
    warm_up(device)
    begin = time.perf_counter()
    arrangement = prepared(checkpoint, manifest)
    headers = time.perf_counter()
    with checkpoint.reader() as reader, SILENT.phase("", 0) as phase, Staging(reader, device) as staging:
        budget = options.budget if manifest is not None else None
        loader = Loader(arrangement, staging, phase, budget, later=True)
        loader.read_ahead()
        started = time.perf_counter()
        weights = [loader.load(arranged) for arranged in arrangement.weights]
        loader.settle()
        told = time.perf_counter()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        done = time.perf_counter()
        found: dict[str, Any] = {
            "weights": len(weights), "headers": headers - begin, "start": started - headers,
            "load": told - started, "device_after": done - told,
        }  # fmt: skip
        if staging.ahead is not None:
            times = staging.ahead.times
            found |= {
                "thread_reading": times.reading, "thread_without_buffer": times.no_buffer,
                "caller_without_bytes": times.no_bytes, "caller_busy": told - started - times.no_bytes,
                "caller_planning": times.planning, "caller_sending": times.sending,
                "read_directly": staging.ahead.left(),
            }  # fmt: skip
        found["working"] = loader.most_working
        return found


def write_layer(folder: Path, options: argparse.Namespace) -> Checkpoint:
    """The synthetic source. Every matrix is the same noise, moved on by another distance."""
    if (folder / "model.safetensors").exists():
        return open_checkpoint(folder)
    folder.mkdir(parents=True)
    config = layer_config(options.experts, options.hidden, options.width)
    specs = inventory(Glm5NextConfig.from_checkpoint_config(config))
    noise = torch.randn(options.hidden * options.width, generator=torch.Generator().manual_seed(1)) * 0.02
    noise = noise.bfloat16()
    shard = StreamedShard(
        folder / "model.safetensors",
        [Fixed(name, spec.dtype, spec.shape) for name, spec in specs.items()],
    )
    for number, (name, spec) in enumerate(specs.items()):
        begin = 0
        for part in pieces(noise, torch.Size(spec.shape).numel(), number):
            data = tensor_bytes(part if spec.dtype == "BF16" else part.float())
            shard.write(name, begin, data)
            begin += data.nbytes
    shard.finish()
    (folder / "config.json").write_bytes(json_bytes(config))
    return open_checkpoint(folder)


def pieces(noise: torch.Tensor, count: int, number: int) -> Iterator[torch.Tensor]:
    """`count` numbers out of the noise, from another place for each tensor."""
    at = number * 977 % noise.numel()
    while count:
        part = noise[at : at + count]
        yield part
        count -= part.numel()
        at = 0


def read_only(checkpoint: Checkpoint) -> float:
    """Seconds to read every tensor's bytes into one buffer."""
    buffer = torch.empty(BUFFER, dtype=torch.uint8)
    begin = time.perf_counter()
    with checkpoint.reader() as reader:
        for entry in checkpoint.tensors.values():
            for first in range(0, entry.nbytes, BUFFER):
                last = min(first + BUFFER, entry.nbytes)
                reader.read_into(entry, buffer[: last - first], first, last)
    return time.perf_counter() - begin


def warm_up(device: torch.device) -> None:
    """Makes the libraries and the context load before the clock runs."""
    for name in ("W4A16_NVFP4", "MXFP8"):
        encode(name, torch.randn(1024, 1024, device=device).bfloat16())


def drop(checkpoint: Checkpoint, cold: bool) -> None:
    """Asks the system to forget the source's pages."""
    if not cold:
        return
    for shard in checkpoint.shards:
        descriptor = os.open(shard.path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", nargs="?", default="demo")
    parser.add_argument("--recipe", default="spark")
    parser.add_argument("--layer", action="store_true")
    parser.add_argument("--experts", type=int, default=288)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--folder", help="where --layer keeps its source; a temporary folder by default")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    two_experts = 2 * 3 * 4096 * 2048 * 2
    parser.add_argument("--budget", type=int, default=two_experts, help="bytes; two experts by default")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--out", help="also write the result to this file")
    parser.add_argument("--phases", action="store_true", help="also say where the seconds go")
    parser.add_argument("--warm", action="store_true", help="all loads in this process, a line each")
    parser.add_argument("--explain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
