"""20,000 damaged headers, indexes and quantization configurations.

Each must be read, or refused with an IntarsiaError that does not hide a KeyError, IndexError or struct.error.
A case that takes ten seconds is a hang and fails; the memory of all cases together is bounded. Whatever
header is accepted, the safetensors library must accept too.
"""

import json
import random
import resource
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors import SafetensorError, safe_open

from intarsia.checkpoint import audit, open_checkpoint, summarize
from intarsia.core.errors import IntarsiaError
from tests.checkpoint.build import header_of, mixed, modelopt, nested, shard
from tests.checkpoint.mutate import any_damage

HANG_SECONDS = 10
MEMORY = 300 << 20
HIDDEN = (KeyError, IndexError, struct.error, AttributeError, TypeError, AssertionError, RecursionError)

SPEC = {
    "model.layers.0.q.weight": ("U8", (4, 16)),
    "model.layers.0.q.weight_scale": ("F8_E4M3", (4, 2)),
    "model.layers.0.q.weight_scale_2": ("F32", ()),
    "model.layers.0.k.weight": ("F8_E4M3", (4, 32)),
    "model.layers.0.k.weight_scale": ("U8", (4, 1)),
    "model.norm.weight": ("BF16", (32,)),
    "model.empty": ("F32", (0, 3)),
}


@contextmanager
def hang_guard() -> Iterator[None]:
    def give_up(number: int, frame: object) -> None:
        raise TimeoutError(f"a case took more than {HANG_SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refused(action: Callable[[], object]) -> IntarsiaError | None:
    """Run one case under the guard; the refusal, if that is how it ended."""
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        action()
    except IntarsiaError as error:
        return error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def check_hides_nothing(error: BaseException) -> None:
    seen = error
    while seen is not None:
        assert not isinstance(seen, HIDDEN), f"{error!r} hides {seen!r}"
        seen = seen.__cause__ or seen.__context__


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def everything(folder: Path) -> None:
    """All that reads headers and metadata; the reports never raise about what is inside a folder."""
    checkpoint = open_checkpoint(folder, strict=False)
    audit(checkpoint, expected={"model.norm.weight": (32,)})
    summarize(checkpoint)


def damaged_shard(rng: random.Random) -> tuple[bytes, bytes]:
    """Header text and data, one or both damaged."""
    header, size = header_of(SPEC)
    if rng.random() < 0.3:
        header = {"__metadata__": {"format": "pt"}} | header
    if rng.random() < 0.15:
        move_ranges(header, rng)
        text = json.dumps(header).encode()
    else:
        text = json.dumps(header).encode() if rng.random() < 0.05 else any_damage(header, rng)
    if rng.random() < 0.2:
        text += b" " * rng.randint(1, 9)
    data = bytes(size)
    if rng.random() < 0.1:
        data = data[: rng.randrange(size)] if rng.random() < 0.5 else data + bytes(rng.randint(1, 9))
    return text, data


def move_ranges(header: dict, rng: random.Random) -> None:
    """Shift or exchange byte ranges that keep their lengths: holes, overlaps, and orders that are fine."""
    names = [name for name in header if name != "__metadata__"]
    first, second = (header[name]["data_offsets"] for name in rng.sample(names, 2))
    if rng.random() < 0.5:
        by = rng.choice((-8, -1, 1, 4, 64))
        first[:] = [first[0] + by, first[1] + by]
    elif rng.random() < 0.5:
        second[:] = [first[0], first[0] + second[1] - second[0]]
    else:
        low, high = sorted((first, second))
        size = [low[1] - low[0], high[1] - high[0]]
        end = high[1]
        low[:], high[:] = [low[0] + size[1], low[0] + size[1] + size[0]], [low[0], low[0] + size[1]]
        if rng.random() < 0.5:
            low[:] = [end - size[0], end]


def library_accepts(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            list(file.keys())
    except (SafetensorError, OSError, ValueError):
        return False
    return True


def test_10000_damaged_headers(tmp_path):
    rng = random.Random(20_261_129)
    path = tmp_path / "model.safetensors"
    before, accepted = peak(), 0
    with hang_guard():
        for case in range(10_000):
            text, data = damaged_shard(rng)
            shard(path, text, data)
            if rng.random() < 0.03:
                raw = bytearray(path.read_bytes())
                raw[rng.randrange(8)] ^= 1 << rng.randrange(8)
                path.write_bytes(raw)
            error = refused(lambda: open_checkpoint(tmp_path))
            if error is not None:
                check_hides_nothing(error)
            else:
                accepted += 1
                assert library_accepts(path), f"case {case}: {text[:400]!r}"
            if case % 10 == 0:
                assert refused(lambda: everything(tmp_path)) is None
    assert accepted > 300, "too few survivors to compare"
    assert peak() - before < MEMORY


def test_4000_damaged_indexes(tmp_path):
    rng = random.Random(7)
    names = list(SPEC)
    for number in range(2):
        shard(tmp_path / f"m-{number}.safetensors", *header_of({n: SPEC[n] for n in names[number::2]}))
    document = {
        "metadata": {"total_size": 1},
        "weight_map": {name: f"m-{number % 2}.safetensors" for number, name in enumerate(names)},
    }
    before, accepted = peak(), 0
    with hang_guard():
        for _ in range(4_000):
            (tmp_path / "model.safetensors.index.json").write_bytes(any_damage(document, rng))
            error = refused(lambda: open_checkpoint(tmp_path))
            accepted += error is None
            if error is not None:
                check_hides_nothing(error)
            assert refused(lambda: everything(tmp_path)) is None
    assert accepted < 2_000
    assert peak() - before < MEMORY


LAYERS = {
    "model.layers.0.q": {"quant_algo": "W4A16_NVFP4", "group_size": 16, "weight_scale_encoding": "csf"},
    "model.layers.0.k": {"quant_algo": "MXFP8", "group_size": 32},
}
IGNORE = ["model.norm", "lm_head*", "re:.*norm.*", "*.embed[a-z]*", "model.layers.?.gate"]
KV = {"dynamic": False, "num_bits": 8, "type": "float"}
CONFIGS = (
    {"quantization_config": mixed(LAYERS)},
    {
        "quantization_config": modelopt(
            "NVFP4", ignore=IGNORE, kv_cache_scheme={"num_bits": 8, "type": "float"}
        )
    },
    {
        "quantization_config": {
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "ignored_layers": IGNORE,
        }
    },
    {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "ignore": IGNORE,
            "config_groups": {
                "a": {
                    "targets": ["Linear", "re:.*q$"],
                    "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group"},
                }
            },
        }
    },
    {
        "quantization_config": {
            "quant_method": "nvfp4_csf",
            "format_version": 1,
            "checkpoint_root": "/models/x",
            "source_quantization_config": modelopt("NVFP4", ignore=IGNORE),
        }
    },
)


@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_1000_damaged_configurations_of_each_dialect(tmp_path, number):
    rng = random.Random(number)
    shard(tmp_path / "model.safetensors", *header_of(SPEC))
    before = peak()
    with hang_guard():
        for _ in range(1_000):
            config = CONFIGS[number] | {"num_hidden_layers": 1, "text_config": {"num_hidden_layers": 1}}
            (tmp_path / "config.json").write_bytes(any_damage(config, rng))
            error = refused(lambda: open_checkpoint(tmp_path))
            if error is not None:
                check_hides_nothing(error)
            assert refused(lambda: everything(tmp_path)) is None
    assert peak() - before < MEMORY


def test_1000_damaged_second_carriers(tmp_path):
    rng = random.Random(99)
    shard(tmp_path / "model.safetensors", *header_of(SPEC))
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[0]))
    legacy = nested("MIXED_PRECISION", quantized_layers=LAYERS, exclude_modules=IGNORE)
    with hang_guard():
        for _ in range(1_000):
            (tmp_path / "hf_quant_config.json").write_bytes(any_damage(legacy, rng))
            error = refused(lambda: open_checkpoint(tmp_path))
            if error is not None:
                check_hides_nothing(error)
            assert refused(lambda: everything(tmp_path)) is None
