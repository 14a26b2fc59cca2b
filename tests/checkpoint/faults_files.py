"""Faults of metadata, index and files."""

from typing import Any

import torch
from safetensors.torch import save_file

from tests.checkpoint.faults import CONFIG, INDEX, LEGACY, Copy, NotApplicableError, fault


def recipe_key(copy: Copy, algo: str) -> str:
    """A random module whose recipe is `algo`."""
    keys = [name for name, entry in copy.recipes().items() if entry["quant_algo"] == algo]
    if not keys:
        raise NotApplicableError(algo)
    return copy.rng.choice(keys)


@fault("a recipe that is missing")
def no_recipe(copy: Copy) -> str:
    key = recipe_key(copy, "MXFP8")
    copy.edit_recipes(lambda layers: layers.pop(key))
    return key


@fault("a recipe of another format")
def other_recipe(copy: Copy) -> str:
    key = recipe_key(copy, "MXFP8")
    copy.edit_recipes(lambda layers: layers.update({key: {"quant_algo": "FP8_PB_WO"}}))
    return key


@fault("a recipe that nobody knows")
def unknown_recipe(copy: Copy) -> str:
    key = recipe_key(copy, "MXFP8")
    copy.edit_recipes(lambda layers: layers.update({key: {"quant_algo": "FP6_TURBO"}}))
    return "FP6_TURBO"


@fault("a recipe for a module that does not exist")
def idle_recipe(copy: Copy) -> str:
    copy.edit_recipes(lambda layers: layers.update({"model.nowhere.proj": {"quant_algo": "MXFP8"}}))
    return "model.nowhere.proj"


@fault("a group size of 32 for NVFP4")
def group_size(copy: Copy) -> str:
    key = recipe_key(copy, "NVFP4")
    copy.edit_recipes(lambda layers: layers[key].update(group_size=32))
    return key


def encoded_key(copy: Copy) -> str:
    keys = [name for name, entry in copy.recipes().items() if "weight_scale_encoding" in entry]
    if not keys:
        raise NotApplicableError("compressed scales")
    return copy.rng.choice(keys)


@fault("compressed scales that are not declared")
def undeclared_encoding(copy: Copy) -> str:
    key = encoded_key(copy)
    copy.edit_recipes(lambda layers: layers[key].pop("weight_scale_encoding"))
    return key


@fault("an encoding that nobody knows")
def unknown_encoding(copy: Copy) -> str:
    key = encoded_key(copy)
    copy.edit_recipes(lambda layers: layers[key].update(weight_scale_encoding="csf_64x4_v9"))
    return "csf_64x4_v9"


@fault("the other codec declared")
def other_encoding(copy: Copy) -> str:
    key = encoded_key(copy)
    other = "csf" if copy.recipes()[key]["weight_scale_encoding"] != "csf" else "csf_32x2_v1"
    copy.edit_recipes(lambda layers: layers[key].update(weight_scale_encoding=other))
    return key


@fault("an exclude pattern over quantized modules")
def excluded(copy: Copy) -> str:
    module = copy.pick("mxfp8")
    copy.edit(CONFIG, lambda d: d["quantization_config"].update(ignore=[module + "*"]))
    return module


@fault("an unknown quantization method")
def unknown_method(copy: Copy) -> str:
    copy.edit(CONFIG, lambda d: d["quantization_config"].update(quant_method="turboquant"))
    return "turboquant"


@fault("two carriers that disagree about the cache")
def kv_disagreement(copy: Copy) -> str:
    if not (copy.folder / LEGACY).exists():
        raise NotApplicableError("one carrier")
    scheme = {"dynamic": False, "num_bits": 8, "type": "float"}
    copy.edit(CONFIG, lambda d: d["quantization_config"].update(kv_cache_scheme=scheme))
    copy.edit(LEGACY, lambda d: d["quantization"].update(kv_cache_quant_algo="NVFP4"))
    return "KV-cache"


@fault("no recipes at all")
def no_recipes(copy: Copy) -> str:
    copy.edit_recipes(lambda layers: layers.clear())
    return "quantized_layers"


@fault("a key twice in the configuration")
def twice(copy: Copy) -> str:
    text = (copy.folder / CONFIG).read_bytes()
    copy.replace(CONFIG, text.replace(b"{", b'{"model_type": "x", "model_type": "y", ', 1))
    return "model_type"


@fault("a configuration cut short")
def short_config(copy: Copy) -> str:
    copy.replace(CONFIG, (copy.folder / CONFIG).read_bytes()[:-3])
    return CONFIG


@fault("an index entry for a shard that does not exist")
def missing_shard(copy: Copy) -> str:
    copy.weight_map[copy.rng.choice(list(copy.weight_map))] = "tensors/gone.safetensors"
    copy.save_map()
    return "tensors/gone.safetensors"


@fault("a shard that is missing")
def deleted_shard(copy: Copy) -> str:
    shard = copy.rng.choice(sorted(set(copy.weight_map.values())))
    (copy.folder / shard).unlink()
    return shard


@fault("an index entry for a tensor that does not exist")
def missing_tensor(copy: Copy) -> str:
    copy.weight_map["model.ghost.weight"] = copy.rng.choice(sorted(set(copy.weight_map.values())))
    copy.save_map()
    return "model.ghost.weight"


@fault("a tensor that the index does not know")
def unindexed(copy: Copy) -> str:
    name = copy.rng.choice(list(copy.weight_map))
    del copy.weight_map[name]
    copy.save_map()
    return name


@fault("an index entry with the wrong shard")
def wrong_shard(copy: Copy) -> str:
    shards = sorted(set(copy.weight_map.values()))
    if len(shards) < 2:
        raise NotApplicableError("one shard")
    name = copy.rng.choice(list(copy.weight_map))
    copy.weight_map[name] = next(shard for shard in shards if shard != copy.weight_map[name])
    copy.save_map()
    return name


@fault("an index path that leaves the folder")
def escaping(copy: Copy) -> str:
    name = copy.rng.choice(list(copy.weight_map))
    copy.weight_map[name] = "../" + copy.weight_map[name]
    copy.save_map()
    return name


@fault("an index that is not JSON")
def broken_index(copy: Copy) -> str:
    copy.replace(INDEX, b'{"weight_map": ')
    return INDEX


@fault("a shard from elsewhere")
def foreign_shard(copy: Copy) -> str:
    save_file({"other.weight": torch.ones(2)}, copy.folder / "other.safetensors")
    return "other.safetensors"


@fault("a tensor in two shards")
def duplicate(copy: Copy) -> str:
    shards = sorted(set(copy.weight_map.values()))
    if len(shards) < 2:
        raise NotApplicableError("one shard")
    name = copy.rng.choice(list(copy.weight_map))
    home = copy.weight_map[name]
    copy.write({name: copy.read(name)}, next(shard for shard in shards if shard != home))
    return name


def any_shard(copy: Copy) -> str:
    return copy.rng.choice(sorted(set(copy.weight_map.values())))


@fault("a shard cut short")
def truncated(copy: Copy) -> str:
    shard = any_shard(copy)
    raw = (copy.folder / shard).read_bytes()
    copy.replace(shard, raw[: copy.rng.randrange(len(raw) // 2, len(raw))])
    return shard


@fault("bytes behind the last tensor")
def trailing(copy: Copy) -> str:
    shard = any_shard(copy)
    copy.replace(shard, (copy.folder / shard).read_bytes() + b"\0" * 8)
    return shard


@fault("a header that claims to be huge")
def huge_header(copy: Copy) -> str:
    shard = any_shard(copy)
    copy.replace(shard, (1 << 40).to_bytes(8, "little") + (copy.folder / shard).read_bytes()[8:])
    return shard


def header_entry(copy: Copy, header: dict[str, Any]) -> str:
    """A random tensor of a header with at least two bytes."""
    names = [
        name
        for name, entry in header.items()
        if name != "__metadata__" and entry["data_offsets"][1] - entry["data_offsets"][0] > 1
    ]
    return copy.rng.choice(names)


def header_fault(title: str, change: Any) -> None:
    """Change one entry of one header."""

    def apply(copy: Copy) -> str:
        chosen: list[str] = []

        def edit(header: dict[str, Any]) -> None:
            chosen.append(header_entry(copy, header))
            change(header[chosen[0]])

        copy.edit_header(any_shard(copy), edit)
        return chosen[0]

    fault(title)(apply)


def _grow(entry: dict[str, Any]) -> None:
    entry["shape"] = [*entry["shape"], 3]


def _late(entry: dict[str, Any]) -> None:
    entry["data_offsets"][0] += 1


def _unknown(entry: dict[str, Any]) -> None:
    entry["dtype"] = "F5"


def _extra(entry: dict[str, Any]) -> None:
    entry["strides"] = [1]


def _boolean(entry: dict[str, Any]) -> None:
    entry["shape"] = [True, *entry["shape"]]


header_fault("a shape that the bytes do not fill", _grow)
header_fault("a range that starts too late", _late)
header_fault("a type that nobody knows", _unknown)
header_fault("a header entry with a field too many", _extra)
header_fault("a dimension that is a boolean", _boolean)


@fault("two tensors in one place")
def overlap(copy: Copy) -> str:
    chosen: list[str] = []

    def edit(header: dict[str, Any]) -> None:
        by_kind: dict[Any, list[str]] = {}
        for name, entry in header.items():
            if name != "__metadata__" and entry["data_offsets"][1] > entry["data_offsets"][0]:
                by_kind.setdefault((entry["dtype"], tuple(entry["shape"])), []).append(name)
        twins = [names for names in by_kind.values() if len(names) > 1]
        if not twins:
            raise NotApplicableError("tensors of one shape")
        first, second = copy.rng.sample(copy.rng.choice(twins), 2)
        header[second]["data_offsets"] = header[first]["data_offsets"]
        chosen.append(second)

    shard = any_shard(copy)
    copy.edit_header(shard, edit)
    return "bytes"
