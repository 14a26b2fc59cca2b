"""What the stored tensors of a module say about its format, without believing any metadata.

`candidates` asks the contract of every algorithm, so what the bytes may be and what metadata may demand have
one source.
"""

from intarsia.checkpoint.algorithms import CONTRACTS
from intarsia.checkpoint.contracts import SCALES, Tensors, contract_issues
from intarsia.formats import csf

_INNER = frozenset((*SCALES, "weight_quantizer", "input_quantizer", "output_quantizer"))
_INNER_ENDS = tuple(f".{inner}" for inner in _INNER)
_SIDECARS = frozenset(suffix for contract in CONTRACTS.values() for suffix in contract.known_suffixes) - {
    "weight"
}
# Stacked experts of other architectures, `gate_up_proj_weight_scale`: not read, but never taken for plain.
_STACKED = ("_weight_scale", "_weight_scale_2", "_input_scale", "_blocks", "_scales")
_PLAIN_DTYPES = frozenset(("BF16", "F16", "F32", "F64"))


def split_name(name: str) -> tuple[str, str]:
    """Module and suffix of a tensor: the last component, with what belongs inside a scale kept together."""
    module, _, suffix = name.rpartition(".")
    if module.endswith(_INNER_ENDS):
        parent, _, last = module.rpartition(".")
        return parent, f"{last}.{suffix}"
    return module, suffix


def is_plain(tensors: Tensors) -> bool:
    """Whether nothing about the tensors looks quantized."""
    weight = tensors.get("weight")
    if weight is not None and weight.dtype not in _PLAIN_DTYPES:
        return False
    return len(tensors) == 1 or not any(_is_sidecar(suffix) for suffix in tensors)


def _is_sidecar(suffix: str) -> bool:
    return suffix in _SIDECARS or suffix.partition(".")[0] in _INNER or suffix.endswith(_STACKED)


def candidates(tensors: Tensors) -> list[str]:
    """The algorithms whose contract the tensors fulfil exactly; several when the shapes do not decide.

    Those that are not read come up only when none that is read fits.
    """
    codec = codec_of(tensors)
    fits = [name for name, contract in CONTRACTS.items() if not contract_issues(contract, tensors, codec)]
    return [name for name in fits if CONTRACTS[name].read] or fits


def codec_of(tensors: Tensors) -> str | None:
    """The codec whose components are among the tensors, or None for plain scales."""
    if not any("." in suffix for suffix in tensors):
        return None
    present = {suffix.partition(".")[2] for suffix in tensors if suffix.partition(".")[0] in SCALES}
    for codec in csf.CODECS:
        if present.intersection(csf.components(codec)):
            return codec
    return None
