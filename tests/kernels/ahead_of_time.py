"""Compiles the Triton and Gluon kernels of launches for sm_90 on a machine without a GPU, with the launches'
own constants.
"""

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.uint8: "u8",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
ALIGNED = [["tt.divisibility", 16]]
OPTIONS = ("num_warps", "launch_pdl", "maxnreg")


class Compiled:
    """Stands where a jitted function stands, of Triton or Gluon; a launch compiles it into `built`."""

    def __init__(self, function) -> None:
        self.function = function
        self.built: list[object] = []

    def __getitem__(self, grid):
        return self._launch

    def _launch(self, *args, **keywords) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler.compiler import ASTSource
        from triton.experimental.gluon._runtime import GluonASTSource

        names = list(self.function.arg_names)
        options = {key: keywords.pop(key) for key in OPTIONS if key in keywords}
        given = dict(zip(names, args, strict=False)) | keywords
        signature: dict[str, str] = {}
        constants: dict[object, object] = {}
        attributes = {}
        for index, name in enumerate(names):
            value, parameter = given[name], self.function.params[index]
            if parameter.is_constexpr or _is_constant(value):
                signature[name], constants[name] = "constexpr", value
            elif isinstance(value, tuple):
                signature[name] = tuple("constexpr" if _is_constant(one) else _kind(one) for one in value)
                constants |= {(index, i): one for i, one in enumerate(value) if _is_constant(one)}
                attributes |= {(index, i): ALIGNED for i, one in enumerate(value) if _is_aligned(one)}
            else:
                signature[name] = _kind(value)
                if _is_aligned(value):
                    attributes[(index,)] = ALIGNED
        kind = GluonASTSource if self.function.is_gluon() else ASTSource
        source = kind(self.function, signature, constants, attributes)
        self.built.append(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options))


def _is_constant(value: object) -> bool:
    return value is None or (isinstance(value, int) and value == 1)


def _is_aligned(value: object) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0)


def _kind(value) -> str:
    """The type of an argument as the compiler's signatures spell it."""
    if isinstance(value, Tensor):
        return "*" + TYPES[value.dtype]
    if hasattr(value, "block_shape"):
        block = ", ".join(map(str, value.block_shape))
        return f"tensordesc<{TYPES[value.base.dtype]}[{block}],{value.layout!r}>"
    return "fp32" if isinstance(value, float) else "i32"


def usage(kernel) -> dict[str, int]:
    """Registers, stack bytes (spills), shared bytes and counts of telling instructions."""
    import triton.backends.nvidia as nvidia

    tools = Path(nvidia.__file__).parent / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        resources = _run(tools / "cuobjdump", "-res-usage", file.name)
        assembly = _run(tools / "nvdisasm", "-c", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+)", resources)
    operations = Counter(re.findall(r"\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9]+)", assembly))
    kept = ("HGMMA", "HMMA", "FFMA", "LDGSTS", "LDG", "LDS", "LDSM", "STS", "BAR", "PRMT", "HMUL2")
    return {
        "registers": int(found[1]),
        "stack": int(found[2]),
        "shared": kernel.metadata.shared,
        **{name: operations[name] for name in kept if operations[name]},
        "all": sum(operations.values()),
    }


def _run(*command: object) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout
