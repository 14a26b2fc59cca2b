"""The quantization algorithms that checkpoints name, and the tensors each stores beside a weight.

Names are nvidia-modelopt's. An algorithm that is known but not read has contracts too, so that a report can
say what a module is before it is refused.
"""

from dataclasses import dataclass, field
from typing import Literal

from intarsia.formats import ALIASES

Grid = Literal["none", "scalar", "rows", "groups", "blocks"]

MIXED = "MIXED_PRECISION"
CT_NVFP4 = "NVFP4_PACK_QUANTIZED"

KV_ALGORITHMS = frozenset(("FP8", "INT8", "NVFP4", "NVFP4_AFFINE"))


@dataclass(frozen=True, slots=True)
class Contract:
    """What one algorithm stores next to a module.

    A weight holds `per_byte` elements a byte along its last axis (`row_pairs`: along its first). `grid` says
    what one entry of the scale covers: the tensor, a row, `group` columns of a row, or a 128 x 128 block.
    """

    name: str
    read: bool
    weight: str
    weight_dtype: str
    grid: Grid
    scale_dtypes: tuple[str, ...] = ()
    scale_names: tuple[str, ...] = ("weight_scale",)
    group: int = 0
    per_byte: int = 1
    row_pairs: bool = False
    scalars: tuple[str, ...] = ()
    optional: frozenset[str] = field(default_factory=frozenset)
    payload: int = 0  # bytes of a codec block, for weights [rows, blocks, payload]

    @property
    def known_suffixes(self) -> frozenset[str]:
        """Every suffix the algorithm may store, companions of any module left out."""
        return frozenset((self.weight, *self.scale_names, *self.scalars)) | self.optional


_AWQ = frozenset(("pre_quant_scale",))
_E8M0 = ("U8", "F8_E8M0")
_INVERSE_TOO = ("weight_scale", "weight_scale_inv")


def _fp4(
    name: str, read: bool, *scalars: str, group: int = 16, optional: frozenset[str] = frozenset()
) -> Contract:
    return Contract(
        name,
        read,
        "weight",
        "U8",
        "groups",
        ("F8_E4M3",),
        group=group,
        per_byte=2,
        scalars=("weight_scale_2", *scalars),
        optional=optional,
    )


def _ggml(name: str, group: int, payload: int) -> Contract:
    return Contract(name, False, "weight", "U8", "none", group=group, payload=payload)


CONTRACTS: dict[str, Contract] = {
    contract.name: contract
    for contract in (
        _fp4("NVFP4", True, "input_scale"),
        _fp4("W4A16_NVFP4", True),
        Contract("MXFP8", True, "weight", "F8_E4M3", "groups", _E8M0, _INVERSE_TOO, group=32),
        Contract("MXFP4", True, "weight", "U8", "groups", _E8M0, group=32, per_byte=2),
        Contract("FP8", True, "weight", "F8_E4M3", "scalar", ("F32",), optional=frozenset(("input_scale",))),
        Contract("FP8_PER_CHANNEL_PER_TOKEN", True, "weight", "F8_E4M3", "rows", ("F32",)),
        Contract("FP8_PB_WO", True, "weight", "F8_E4M3", "blocks", ("F32", "BF16"), _INVERSE_TOO, group=128),
        _fp4("NVFP4_AWQ", False, "input_scale", optional=_AWQ),
        _fp4("NVFP4_SVD", False, "input_scale", optional=_AWQ | {"svdquant_lora_a", "svdquant_lora_b"}),
        _fp4("W4A8_NVFP4_FP8", False, "input_scale", group=32),
        Contract(
            "W4A8_MXFP4_FP8", False, "weight", "U8", "groups", _E8M0, group=32, per_byte=2,
            scalars=("input_scale",),
        ),
        Contract(
            "W4A16_AWQ", False, "weight", "U8", "groups", ("F32",), group=128, row_pairs=True, optional=_AWQ
        ),
        Contract(
            "W4A8_AWQ", False, "weight", "U8", "groups", ("F32",), group=128, row_pairs=True,
            scalars=("weight_scale_2", "input_scale"), optional=_AWQ,
        ),
        Contract("W8A16", False, "weight", "I8", "rows", ("F32",)),
        Contract(
            "W8A8_SQ_PER_CHANNEL", False, "weight", "I8", "rows", ("F32",), scalars=("input_scale",),
            optional=_AWQ,
        ),
        _ggml("IQ2_XS", 256, 74),
        _ggml("IQ2_XXS", 256, 66),
        _ggml("Q8_0", 32, 34),
        Contract(
            CT_NVFP4, False, "weight_packed", "U8", "groups", ("F8_E4M3",), group=16, per_byte=2,
            scalars=("weight_global_scale",), optional=frozenset(("input_global_scale",)),
        ),
    )
}  # fmt: skip

READ = tuple(name for name, contract in CONTRACTS.items() if contract.read)


def normalise(name: str) -> str:
    """The canonical spelling of an algorithm; an unknown name comes back in upper case."""
    upper = name.upper()
    return ALIASES.get(upper, upper)


def is_known(name: str) -> bool:
    """Whether a normalised name has a contract."""
    return name in CONTRACTS
