"""Parsing the two ModelOpt carriers, and the dialects met beside them, into `Carrier`s.

`hf_quant_config.json` nests everything under `quantization`; `config.json` has a flat `quantization_config`.
Every field is type-checked, and an algorithm nobody knows is refused here, before any module asks for it.
"""

from dataclasses import replace

from intarsia.checkpoint.algorithms import KV_ALGORITHMS, MIXED, normalise
from intarsia.checkpoint.dialects import block_fp8, compressed_tensors
from intarsia.checkpoint.fields import Fields, Json, read_exclude, read_producer, read_recipe
from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.recipes import Carrier, Recipe
from intarsia.core.json import type_name

HF_QUANT_CONFIG = "hf_quant_config.json"
QUANTIZATION_CONFIG = "quantization_config"
CSF_METHODS = ("nvfp4_csf", "mxfp4_csf")
METHODS = ("modelopt", "modelopt_mixed", "fp8", "compressed-tensors", *CSF_METHODS)

_KV_SCHEMES = {("float", 8): "FP8", ("int", 8): "INT8", ("float", 4): "NVFP4"}


def parse_carriers(config: Json, legacy: Json | None, findings: Findings) -> list[Carrier]:
    """The statements of config.json and hf_quant_config.json (None when there is no such file)."""
    carriers = []
    where = f"config.json: {QUANTIZATION_CONFIG}"
    flat = config.get(QUANTIZATION_CONFIG)
    nested = config.get("text_config")
    if flat is None and isinstance(nested, dict) and nested.get(QUANTIZATION_CONFIG) is not None:
        flat, where = nested[QUANTIZATION_CONFIG], f"config.json: text_config.{QUANTIZATION_CONFIG}"
    if flat is not None and not isinstance(flat, dict):
        findings.add("quantization-field", where, type_name(flat), "an object")
    elif flat is not None:
        carriers.append(parse_flat(flat, where, findings))
    if legacy is not None:
        carriers.append(parse_legacy(legacy, findings))
    return [carrier for carrier in carriers if carrier is not None]


def parse_legacy(document: Json, findings: Findings) -> Carrier | None:
    """hf_quant_config.json: nested, or the flat shape that some scripts write under the same name."""
    inner = document.get("quantization")
    if inner is None:
        return parse_flat(document, HF_QUANT_CONFIG, findings)
    where = f"{HF_QUANT_CONFIG}: quantization"
    if not isinstance(inner, dict):
        findings.add("quantization-field", where, type_name(inner), "an object")
        return None
    merged = dict(inner)
    merged.setdefault("producer", document.get("producer"))
    if "quantized_layers" in document:  # one exporter leaves the map at the top level
        merged.setdefault("quantized_layers", document["quantized_layers"])
    return _modelopt(Fields(merged, where, findings))


def parse_flat(document: Json, where: str, findings: Findings) -> Carrier | None:
    """A flat object with a `quant_method`."""
    fields = Fields(document, where, findings)
    method = fields.text("quant_method")
    if method is None and "quant_algo" in document:
        method = "modelopt"
    if method not in METHODS:
        findings.add(
            "unknown-method",
            f"{where}.quant_method",
            repr(document.get("quant_method"))[:80],
            "one of " + ", ".join(METHODS),
            "weights in an unknown format are never guessed at",
        )
        return None
    if method == "fp8":
        return block_fp8(fields)
    if method == "compressed-tensors":
        return compressed_tensors(fields)
    if method in CSF_METHODS:
        return _csf_container(fields, method)
    return _modelopt(fields)


def _modelopt(fields: Fields) -> Carrier:
    written = fields.text("quant_algo")
    mixed = written is not None and normalise(written) == MIXED
    algo = None
    if written is not None and not mixed:
        algo = read_recipe(fields, "quant_algo")
    layers = _layers(fields)
    if mixed and layers is not None and not layers:
        layers = None
    kv_algo, says_kv = _kv_algo(fields)
    return Carrier(
        source=fields.where,
        method="modelopt",
        algo=algo,
        mixed=mixed,
        says_algo="quant_algo" in fields.values,
        kv_algo=kv_algo,
        says_kv=says_kv,
        exclude=read_exclude(fields),
        layers=layers,
        producer=read_producer(fields),
        strict_plain=True,
    )


def _layers(fields: Fields) -> dict[str, Recipe] | None:
    raw = fields.section("quantized_layers")
    if raw is None:
        return None
    inner = raw.get("quantized_layers")
    if len(raw) == 1 and isinstance(inner, dict) and all(isinstance(item, dict) for item in inner.values()):
        raw = inner  # some scripts nest the map once too often
    layers: dict[str, Recipe] = {}
    for name, item in raw.items():
        where = f"{fields.where}.quantized_layers[{name[:200]!r}]"
        if not isinstance(item, dict):
            fields.findings.add("recipe-field", where, type_name(item), "an object with quant_algo")
            continue
        recipe = read_recipe(Fields(item, where, fields.findings), "quant_algo")
        if recipe is not None:
            layers[name] = recipe
    return layers


def _kv_algo(fields: Fields) -> tuple[str | None, bool]:
    """The KV-cache algorithm and whether the carrier mentions it at all; an explicit null is a mention."""
    for key in ("kv_cache_quant_algo", "kv_cache_scheme"):
        if key not in fields.values:
            continue
        value = fields.values[key]
        if value is None:
            return None, True
        if isinstance(value, dict):
            kind, bits = value.get("type"), value.get("num_bits")
            algo = _KV_SCHEMES.get((str(kind), bits if isinstance(bits, int) else 0))
        else:
            algo = value.upper() if isinstance(value, str) else None
        if algo not in KV_ALGORITHMS:
            fields.findings.add(
                "unknown-kv-algo",
                f"{fields.where}.{key}",
                f"{value!r:.80}",
                "null or one of " + ", ".join(sorted(KV_ALGORITHMS)),
            )
            return None, True
        return algo, True
    return None, False


def _csf_container(fields: Fields, method: str) -> Carrier | None:
    """The serving configuration of a CSF container: the original metadata, kept under another key."""
    if fields.values.get("format_version") != 1 or isinstance(fields.values.get("format_version"), bool):
        fields.wrong("format_version", fields.values.get("format_version"), "1")
    root = fields.text("checkpoint_root")
    if root is not None and not root.startswith("/"):
        fields.wrong("checkpoint_root", root, "an absolute path, or nothing")
    source = fields.section("source_quantization_config") if method == "nvfp4_csf" else None
    if method == "nvfp4_csf" and source is None:
        fields.findings.add(
            "quantization-field",
            f"{fields.where}.source_quantization_config",
            "nothing",
            "the original quantization_config",
        )
        return None
    if source is None:
        recipe = Recipe("MXFP4", method, source=fields.where)
        return Carrier(fields.where, method, recipe, says_algo=True, implied_csf=True)
    if source.get("quant_method") in CSF_METHODS:
        fields.wrong("source_quantization_config", source, "the original metadata, not another container's")
        return None
    carrier = parse_flat(source, f"{fields.where}.source_quantization_config", fields.findings)
    return None if carrier is None else replace(carrier, implied_csf=True)
