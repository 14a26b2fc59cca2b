"""The demo's logits are transformers' logits, however the tokens are fed."""

import torch
from safetensors.torch import load_file

import intarsia
from intarsia.checkpoint import locate
from intarsia.engine.runner import ModelRunner
from tests.models.oracle import tiny_config, transformers_logits, transformers_model
from tests.models.streams import Streams

TOKENS = 170
TOLERANCE = 1e-4


def test_the_demo_equals_transformers(tmp_path):
    """170 tokens of held-out text: the indexer keeps 64 and drops the others."""
    folder = locate("demo")
    model = intarsia.load("demo")
    assert model.config.index_topk + model.config.index_kpool < TOKENS
    assets = intarsia.load_text_model("demo").assets
    tokens = assets.tokenizer.encode((folder / "heldout.txt").read_text()[:4000])[:TOKENS]
    assert len(tokens) == TOKENS

    checkpoint = intarsia.open_checkpoint(folder)
    tensors = {}
    for shard in checkpoint.shards:
        tensors |= {name: tensor.float() for name, tensor in load_file(folder / shard.name).items()}
    vision = tiny_config()["vision_config"] | {"out_hidden_size": model.config.hidden_size}
    config = checkpoint.config | {"vision_config": vision, "dtype": "float32"}
    reference = transformers_logits(transformers_model(config, tensors, tmp_path), [tokens])[0]
    largest = reference.abs().max()

    with torch.no_grad():
        whole = model.logits(tokens)
        assert (whole - reference).abs().max() <= TOLERANCE * largest
        uneven = Streams(model).run(tokens, (1, 2, 3, 5, 17, 40, 9, 64))
        assert (uneven - reference).abs().max() <= TOLERANCE * largest
        runner = ModelRunner(model, window=256, max_drafts=0)
        rows = [runner.start(tokens[:101])]
        for token in tokens[101:]:
            rows.append(runner.verify([token])[0])
            runner.commit(1)
        assert (torch.stack(rows) - reference[100:]).abs().max() <= TOLERANCE * largest
