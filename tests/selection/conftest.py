"""Sources made from the inventory, without files."""

import copy

import pytest

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.inventory import inventory
from intarsia.selection.source import describe_source
from tests.data import load_json


def headers_of(config):
    return {
        name: (spec.dtype, spec.shape)
        for name, spec in inventory(Glm5NextConfig.from_checkpoint_config(config)).items()
    }


def tiny(**text):
    """The tiny configuration with sizes that every format divides."""
    config = copy.deepcopy(load_json("tiny_glm5_next_config.json"))
    sizes = {"q_lora_rank": 64, "moe_intermediate_size": 64, "linear_head_dim": 32}
    config["text_config"]["linear_attn_config"]["head_dim"] = 32
    config["text_config"].update(sizes | text)
    return config


@pytest.fixture(scope="session")
def real_source():
    config = load_json("nvidia_GLM-5.3-Flash-NVFP4.config.json")
    return describe_source(config, headers_of(config), {})


@pytest.fixture(scope="session")
def tiny_source():
    return describe_source(tiny(), headers_of(tiny()), {})


@pytest.fixture(scope="session")
def nvfp4_source():
    """nvidia/GLM-5.3-Flash-NVFP4 as published: experts and dense layers already quantized."""
    headers = {name: (dtype, tuple(shape)) for name, (dtype, shape) in _published().items()}
    stored = {
        name.removesuffix(".weight"): "NVFP4"
        for name, (dtype, _) in headers.items()
        if dtype == "U8" and name.endswith(".weight")
    }
    return describe_source(load_json("nvidia_GLM-5.3-Flash-NVFP4.config.json"), headers, stored)


def _published():
    return load_json("derived_headers_nvidia_nvfp4.json.gz")
