"""The demo in the FP4-Local layout: clean, damaged in many ways, and decoded by code that shares nothing."""

import random
import shutil

import pytest
import torch

import intarsia
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.formats import csf
from intarsia.models.glm5_next.model import Glm5NextModel
from tests.checkpoint import faults_files, faults_values
from tests.checkpoint.faults import FAULTS, NotApplicableError, damage
from tests.demo.conftest import CODECS
from tests.demo.independent import dequantized, scale_matrices
from tests.models.oracle import runtime_weights

assert faults_files, faults_values  # importing them registers their faults

# The codecs differ in what can be damaged in the scales alone.
WANTED = {"block": 40, "slab": 10}
FORMATS = {"BF16", "F32", "FP8_PB_WO", "MXFP8", "W4A16_NVFP4"}


@pytest.mark.parametrize("codec", CODECS)
def test_it_is_clean_and_holds_all_formats(converted, codec):
    folder = converted[codec]
    assert intarsia.audit(folder, values=True).violations == ()
    assert {entry.format for entry in intarsia.inspect(folder).formats} == FORMATS


@pytest.mark.parametrize("codec", CODECS)
def test_seeded_faults_are_named(converted, codec, tmp_path):
    done, unnoticed = 0, []
    for name in random.Random(codec).sample(sorted(FAULTS), len(FAULTS)):
        if done == WANTED[codec]:
            break
        try:
            needle = damage(converted[codec], tmp_path / name, name, seed=11)
        except NotApplicableError:
            continue
        violations = intarsia.audit(tmp_path / name, values=True).violations
        if not any(needle in str(violation) for violation in violations):
            unnoticed.append((name, needle, [str(violation) for violation in violations][:3]))
        shutil.rmtree(tmp_path / name)
        done += 1
    assert unnoticed == []
    assert done == WANTED[codec]


@pytest.mark.parametrize("codec", CODECS)
def test_encoding_the_decoded_scales_again_gives_the_stored_bytes(converted, codec):
    checkpoint = intarsia.open_checkpoint(converted[codec])
    name_of = {"block": "csf_32x2_v1", "slab": "nvfp4_slab"}[codec]
    compressed = 0
    with checkpoint.reader() as reader:
        for module, scales in scale_matrices(converted[codec]).items():
            if f"{module}.weight_scale" in checkpoint.tensors:
                continue
            compressed += 1
            for component, expected in csf.encode(torch.from_numpy(scales), name_of).items():
                stored = reader.read(f"{module}.weight_scale.{component}")
                assert torch.equal(stored.flatten(), expected.flatten()), (module, component)
    assert compressed == 5 * 12 * 3


@pytest.mark.parametrize("codec", CODECS)
def test_its_text_is_that_of_the_same_values_in_float32(converted, codec):
    """`dequantized` is a code path of its own from the files to float32 matrices."""
    checkpoint = intarsia.open_checkpoint(converted[codec])
    config = Glm5NextConfig.from_checkpoint_config(checkpoint.config)
    plain = Glm5NextModel(
        config,
        runtime_weights(config, dequantized(converted[codec])),
        dtype=torch.float32,
        device="cpu",
    )
    stored = intarsia.load_text_model(converted[codec])
    prompt = stored.assets.tokenizer.encode("Once upon a time")
    settings = intarsia.GenerationSettings(max_tokens=48, temperature=0)
    with torch.no_grad():
        ids = list(prompt)
        for expected in intarsia.generate(stored, prompt, settings).result.tokens:
            assert int(plain.logits(ids)[-1].argmax()) == expected, len(ids)
            ids.append(expected)
