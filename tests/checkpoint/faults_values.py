"""Faults of values, tensor sets, types and shapes."""

import math
from collections.abc import Callable

import torch

from tests.checkpoint.faults import PARTS, Copy, fault


def set_byte(copy: Copy, name: str, byte: int) -> str:
    """Replace one random byte of a tensor of one-byte elements."""
    tensor = copy.read(name).clone()
    flat = tensor.view(torch.uint8).view(-1)
    flat[copy.rng.randrange(len(flat))] = byte
    copy.write({name: tensor})
    return name


def set_number(copy: Copy, name: str, value: float) -> str:
    """Replace one random element."""
    tensor = copy.read(name).clone()
    flat = tensor.view(-1)
    flat[copy.rng.randrange(len(flat))] = value
    copy.write({name: tensor})
    return name


def byte_fault(title: str, kind: str, suffix: str, byte: int) -> None:
    fault(title)(lambda copy: set_byte(copy, f"{copy.pick(kind)}.{suffix}", byte))


def number_fault(title: str, kind: str, suffix: str, value: float) -> None:
    fault(title)(lambda copy: set_number(copy, f"{copy.pick(kind)}.{suffix}", value))


def change_fault(
    title: str, kind: str, suffix: str, change: Callable[[torch.Tensor], torch.Tensor | None]
) -> None:
    """Replace (or, with None, drop) a whole tensor."""

    def apply(copy: Copy) -> str:
        name = f"{copy.pick(kind)}.{suffix}"
        copy.write({name: change(copy.read(name))})
        return name

    fault(title)(apply)


byte_fault("an exponent byte of 255", "mxfp8", "weight_scale", 0xFF)
byte_fault("a NaN code in MXFP8", "mxfp8", "weight", 0x7F)
byte_fault("a NaN code in block FP8", "blocks", "weight", 0xFF)
byte_fault("a NaN block scale", "plain fp4", "weight_scale", 0x7F)
byte_fault("a block scale with a sign", "plain fp4", "weight_scale", 0xB0)
number_fault("a block scale that is NaN", "blocks", "weight_scale", math.nan)
number_fault("a negative block scale", "blocks", "weight_scale", -1.0)
number_fault("a block scale of zero", "blocks", "weight_scale", 0.0)
number_fault("a global scale of zero", "fp4", "weight_scale_2", 0.0)
number_fault("a global scale that is NaN", "fp4", "weight_scale_2", math.nan)
number_fault("a negative global scale", "fp4", "weight_scale_2", -1e-4)
number_fault("an infinite global scale", "fp4", "weight_scale_2", math.inf)
number_fault("an infinite weight", "BF16 matrix", "weight", math.inf)
number_fault("a norm that is NaN", "F32 other", "weight", math.nan)

change_fault("a lost MXFP8 scale", "mxfp8", "weight_scale", lambda tensor: None)
change_fault("a lost block FP8 scale", "blocks", "weight_scale", lambda tensor: None)
change_fault("a lost global scale", "fp4", "weight_scale_2", lambda tensor: None)
change_fault("lost codes", "fp4", "weight", lambda tensor: None)
change_fault("scales of half the width", "mxfp8", "weight_scale", lambda t: t[:, : t.shape[1] // 2])
change_fault("scales in one dimension", "mxfp8", "weight_scale", lambda t: t.reshape(-1))
change_fault("a block grid without its last row", "blocks", "weight_scale", lambda t: t[:-1])
change_fault("a flat block grid", "blocks", "weight_scale", lambda t: t.reshape(-1))
change_fault("scales stored as floats", "mxfp8", "weight_scale", lambda t: t.float())
change_fault("codes stored as integers", "mxfp8", "weight", lambda t: t.view(torch.uint8))
change_fault("a global scale in bfloat16", "fp4", "weight_scale_2", lambda t: t.bfloat16())
change_fault("two global scales", "fp4", "weight_scale_2", lambda t: t.reshape(1).repeat(2))
change_fault("codes of half the columns", "csf", "weight", lambda t: t[:, : t.shape[1] // 2])
change_fault("codes of half the rows", "plain fp4", "weight", lambda t: t[: t.shape[0] // 2])


@fault("a matrix of an expert that is missing")
def lost_matrix(copy: Copy) -> str:
    module = copy.pick("csf")
    copy.write(dict.fromkeys(copy.parts(module)))
    return module


@fault("an expert that is missing")
def lost_expert(copy: Copy) -> str:
    container = copy.pick("csf").rpartition(".experts.")[0] + ".experts"
    experts = {name.split(".experts.")[1].split(".")[0] for name in copy.parts(container)}
    expert = sorted(experts, key=int)[len(experts) // 2]
    names = copy.parts(f"{container}.{expert}")
    for shard in {copy.weight_map[name] for name in names}:
        copy.write({name: None for name in names if copy.weight_map.get(name) == shard}, shard)
    return container


@fault("a module whose tensors are gone")
def lost_module(copy: Copy) -> str:
    module = copy.pick("mxfp8")
    copy.write(dict.fromkeys(copy.parts(module)))
    return module


@fault("a leaked tensor")
def leaked(copy: Copy) -> str:
    module = copy.pick("mxfp8")
    name = f"{module}.weight_quantizer._double_scale"
    copy.write({name: torch.tensor(1.0)}, copy.shard_of(module))
    return name


@fault("a scale with .weight behind its name")
def renamed(copy: Copy) -> str:
    name = copy.pick("mxfp8") + ".weight_scale"
    copy.write({name: None, f"{name}.weight": copy.read(name)})
    return name


@fault("plain scales beside compressed ones")
def stored_twice(copy: Copy) -> str:
    module = copy.pick("csf")
    rows, half = copy.read(f"{module}.weight").shape
    name = f"{module}.weight_scale"
    scale = torch.full((rows, half // 8), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)
    copy.write({name: scale}, copy.shard_of(module))
    return name


@fault("plain scales instead of compressed ones")
def not_compressed(copy: Copy) -> str:
    module = copy.pick("csf")
    rows, half = copy.read(f"{module}.weight").shape
    scale = torch.full((rows, half // 8), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)
    lost = dict.fromkeys(name for name in copy.parts(module) if ".weight_scale." in name)
    copy.write({f"{module}.weight_scale": scale, **lost}, copy.shard_of(module))
    return module


# The block codec.


def block_change(title: str, kind: str, part: str, change: Callable[[torch.Tensor], None]) -> None:
    def apply(copy: Copy) -> str:
        module = copy.pick(kind)
        name = f"{module}.weight_scale.{part}"
        tensor = copy.read(name).clone()
        change(tensor.view(-1))
        copy.write({name: tensor})
        return f"{module}.weight_scale"

    fault(title)(apply)


def _first(value: int) -> Callable[[torch.Tensor], None]:
    def change(flat: torch.Tensor) -> None:
        flat[0] = value

    return change


block_change("a block base above 240", "block codec", "csf_base", _first(241))
block_change("an escape position of 64", "block codec with escapes", "csf_escape_position", _first(64))
block_change("an escaped scale that is NaN", "block codec with escapes", "csf_escape_value", _first(0xFF))
block_change("an escape count of 64", "block codec", "csf_escape_count", _first(64))
for part in PARTS:
    change_fault(f"a lost component {part}", "block codec", f"weight_scale.{part}", lambda tensor: None)
change_fault(
    "too few escape values", "block codec with escapes", "weight_scale.csf_escape_value", lambda t: t[:-1]
)
change_fault("signed bases", "block codec", "weight_scale.csf_base", lambda t: t.view(torch.int8))
change_fault("codes of fewer blocks", "block codec", "weight_scale.csf_codes", lambda t: t[:, :-1])


@fault("one escape more than there are")
def uncounted(copy: Copy) -> str:
    module = copy.pick("block codec")
    name = f"{module}.weight_scale.csf_escape_count"
    count = copy.read(name).clone()
    count.view(-1)[copy.rng.randrange(count.numel())] += 1
    copy.write({name: count})
    return f"{module}.weight_scale"


@fault("escape positions out of order")
def disordered(copy: Copy) -> str:
    module = copy.pick("block codec with two escapes")
    count = copy.read(f"{module}.weight_scale.csf_escape_count").view(-1).long()
    block = int((count > 1).nonzero()[0])
    start = int(count[:block].sum())
    name = f"{module}.weight_scale.csf_escape_position"
    position = copy.read(name).clone()
    position[start], position[start + 1] = position[start + 1].clone(), position[start].clone()
    copy.write({name: position})
    return f"{module}.weight_scale"


# The slab codec.

FIXED, EXCEPTIONS = "nvfp4_csf_fixed", "nvfp4_csf_exceptions"
block_change("a slab base above 240", "slab codec", FIXED, _first(241))
change_fault("a lost slab stream", "slab codec", f"weight_scale.{FIXED}", lambda tensor: None)
change_fault("a lost exception stream", "slab codec", f"weight_scale.{EXCEPTIONS}", lambda tensor: None)
change_fault("a slab without its last byte", "slab codec", f"weight_scale.{FIXED}", lambda t: t[:, :-1])
change_fault("signed slabs", "slab codec", f"weight_scale.{FIXED}", lambda t: t.view(torch.int8))


def exception_fault(title: str, change: Callable[[torch.Tensor], None]) -> None:
    """Change the exception words, seen as int32."""

    def apply(copy: Copy) -> str:
        module = copy.pick("slab codec with exceptions")
        name = f"{module}.weight_scale.{EXCEPTIONS}"
        words = copy.read(name).view(torch.int32).clone()
        change(words)
        copy.write({name: words.view(torch.uint32)})
        return f"{module}.weight_scale"

    fault(title)(apply)


def _swap(words: torch.Tensor) -> None:
    words[0], words[1] = words[1].clone(), words[0].clone()


def _beyond(words: torch.Tensor) -> None:
    words[-1] = 0xFFFFFF


def _nan(words: torch.Tensor) -> None:
    words[0] |= -16777216  # the upper byte, which is the value, becomes 0xFF


exception_fault("exceptions out of order", _swap)
exception_fault("an exception outside the matrix", _beyond)
exception_fault("an exception that is NaN", _nan)
