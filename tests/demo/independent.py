"""A second way from a stored checkpoint to float32 matrices: numpy, tables and loops, nothing of Intarsia's.

Formulas: E2M1 codes two a byte, low nibble first; value = code * (E4M3 block scale * global scale) for NVFP4,
E4M3 code * 2^(byte - 127) for MXFP8, E4M3 code * scale of its 128 x 128 block for FP8_PB_WO. All float32.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)


def e4m3_table() -> np.ndarray:
    """The value of every E4M3 byte, from its sign, exponent and mantissa bits."""
    values = []
    for byte in range(256):
        exponent, mantissa = byte >> 3 & 15, byte & 7
        size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        if byte & 127 == 127:
            size = float("nan")
        values.append(-size if byte & 128 else size)
    return np.array(values, dtype=np.float32)


E4M3 = e4m3_table()


def dequantized(folder: Path) -> dict[str, torch.Tensor]:
    """Every `.weight` of the checkpoint as float32, and all other tensors that are numbers."""
    stored = _bytes_of(folder)
    result = {}
    for name, value in stored.items():
        module, _, suffix = name.rpartition(".")
        if suffix == "weight" and value.dtype == np.uint8:
            result[name] = torch.from_numpy(_matrix(module, value, stored))
        elif not any(mark in name for mark in ("weight_scale", "input_scale")):
            result[name] = torch.from_numpy(value)
    return result


def scale_matrices(folder: Path) -> dict[str, np.ndarray]:
    """The NVFP4 block scales of every module as bytes [rows, columns / 16], decompressed by loops."""
    stored = _bytes_of(folder)
    modules = [name.removesuffix(".weight_scale_2") for name in stored if name.endswith(".weight_scale_2")]
    return {module: _nvfp4_scales(module, stored) for module in modules}


def _bytes_of(folder: Path) -> dict[str, np.ndarray]:
    """BF16 widened to float32; one-byte floats as their bytes."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    result = {}
    for shard in sorted(set(index.values())):
        with safe_open(folder / shard, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name)
                if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e8m0fnu):
                    tensor = tensor.view(torch.uint8)
                elif tensor.dtype == torch.bfloat16:
                    tensor = tensor.float()
                result[name] = tensor.numpy()
    return result


def _matrix(module: str, weight: np.ndarray, stored: dict[str, np.ndarray]) -> np.ndarray:
    if f"{module}.weight_scale_2" in stored:
        scales = E4M3[_nvfp4_scales(module, stored)]
        nibbles = np.stack([weight & 15, weight >> 4], -1).reshape(weight.shape[0], -1)
        codes = np.where(nibbles & 8, -E2M1[nibbles & 7], E2M1[nibbles & 7]).astype(np.float32)
        factors = scales * stored[f"{module}.weight_scale_2"].astype(np.float32)
        return codes * np.repeat(factors, 16, axis=1)
    scale = stored[f"{module}.weight_scale"]
    codes = E4M3[weight]
    if scale.dtype == np.uint8:
        return codes * np.repeat(np.exp2(scale.astype(np.float32) - 127), 32, axis=1)
    blocks = scale.reshape(-(-weight.shape[0] // 128), -1)
    result = np.empty(weight.shape, dtype=np.float32)
    for row in range(weight.shape[0]):
        for first in range(0, weight.shape[1], 128):
            part = slice(first, first + 128)
            result[row, part] = codes[row, part] * blocks[row // 128, first // 128]
    return result


def _nvfp4_scales(module: str, stored: dict[str, np.ndarray]) -> np.ndarray:
    name = f"{module}.weight_scale"
    if name in stored:
        return stored[name]
    rows, half = stored[f"{module}.weight"].shape
    columns = half // 8
    if f"{name}.csf_base" in stored:
        return _block_scales(name, rows, columns, stored)
    return _slab_scales(name, rows, columns, stored)


def _block_scales(name: str, rows: int, columns: int, stored: dict[str, np.ndarray]) -> np.ndarray:
    base, codes = stored[f"{name}.csf_base"], stored[f"{name}.csf_codes"]
    counts = stored[f"{name}.csf_escape_count"]
    places, values = stored[f"{name}.csf_escape_position"], stored[f"{name}.csf_escape_value"]
    result = np.empty((rows, columns), dtype=np.uint8)
    read = 0
    for i in range(rows // 32):
        for j in range(columns // 2):
            block = np.stack([codes[i, j] & 15, codes[i, j] >> 4], -1) + base[i, j]
            for escape in range(read, read + int(counts[i, j])):
                block[places[escape] // 2, places[escape] % 2] = values[escape]
            read += int(counts[i, j])
            result[32 * i : 32 * i + 32, 2 * j : 2 * j + 2] = block
    return result


def _slab_scales(name: str, rows: int, columns: int, stored: dict[str, np.ndarray]) -> np.ndarray:
    fixed = stored[f"{name}.nvfp4_csf_fixed"].reshape(rows // 16, -1)
    result = np.empty((rows, columns), dtype=np.uint8)
    for slab, content in enumerate(fixed):
        codes = content[16:].reshape(16, columns // 2)
        for row in range(16):
            pair = np.stack([codes[row] & 15, codes[row] >> 4], -1).reshape(-1)
            result[16 * slab + row] = content[row] + pair
    for word in stored[f"{name}.nvfp4_csf_exceptions"].tolist():
        position = word & 0xFFFFFF
        result[position // columns, position % columns] = word >> 24
    return result
