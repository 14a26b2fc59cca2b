"""The demo model's training program: its text, its tokenizer, its network, its losses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tools.train_demo.corpus import document, held_out, pair_held_out, sentences
from tools.train_demo.data import encode, generate, held_out_documents, windows
from tools.train_demo.export import (
    SHARDS,
    ExportError,
    check_beyond_bf16,
    checkpoint_tensors,
    load_tensors,
    write_checkpoint,
)
from tools.train_demo.kda import UnitLowerInverse, chunk_factors, chunked_delta_rule
from tools.train_demo.model import DemoModel
from tools.train_demo.ngram import KneserNey, TrigramDrafter
from tools.train_demo.settings import SPECIAL_TOKENS, TOKEN_ID, NetworkSettings
from tools.train_demo.tokenizer import load_tokenizer
from tools.train_demo.train import Trainer, TrainSettings

ASSETS = Path(__file__).parents[2] / "src/intarsia/assets/demo"
TINY = NetworkSettings(
    vocab_size=128, hidden_size=64, intermediate_size=96, experts=8, moe_intermediate_size=32,
    kda_head_dim=16,
    qk_head_dim=24, v_head_dim=16, q_lora_rank=48, kv_lora_rank=32, index_head_dim=16, index_topk=16,
    eos_token_ids=(126, 127),
)  # fmt: skip


def tiny_model(seed: int = 0) -> DemoModel:
    """Every parameter random and large enough that each part of the network matters."""
    torch.manual_seed(seed)
    model = DemoModel(TINY).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.add_(0.3 * torch.randn_like(p))
            elif "indexer" in name:
                p.copy_(0.5 * torch.randn_like(p))
            elif "dt_bias" in name or "A_log" in name:
                p.copy_(torch.randn_like(p))
            elif "mlp" in name and ("gate" in name or "up" in name):
                p.mul_(4)
        for router in model.routers():
            router.e_score_correction_bias.copy_(0.3 * torch.randn(TINY.experts))
    return model


def test_documents_depend_on_their_number_alone() -> None:
    assert [document(i) for i in range(40)] == [document(i) for i in range(40)]
    whole = generate(ASSETS, 1, 1, [])
    again = encode(ASSETS, [document(i) for i in range(50)])
    assert np.array_equal(whole.stream.tokens[: len(again.tokens)], again.tokens)


def test_no_sentence_stands_on_both_sides() -> None:
    train = {s for i in range(1500) for s in sentences(document(i))}
    held = {s for text in held_out_documents(150) for s in sentences(text)}
    assert len(train) > 5000
    assert len(held) > 300
    assert not train & held
    assert not any(held_out(s) for s in train)
    assert all(held_out(s) for s in held)


def test_no_held_out_pair_is_in_training_text() -> None:
    equation = re.compile(r"(\d+) (?:[+-]|plus|minus) (\d+)")
    for i in range(3000):
        for a, b in equation.findall(document(i)):
            assert not pair_held_out(int(a), int(b)), document(i)
    held = [document(i, held=True) for i in range(300)]
    pairs = [(int(a), int(b)) for t in held for a, b in re.findall(r"^(\d\d+) \+ (\d+) = ", t, re.MULTILINE)]
    assert len(pairs) > 50
    assert all(pair_held_out(a, b) for a, b in pairs)


def test_equations_are_right() -> None:
    for i in range(800):
        for a, sign, b, c in re.findall(r"(?<![\d+-] )\b(\d+) ([+*-]) (\d+) = (\d+)", document(i)):
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == int(c)


def test_tokenizer_keeps_every_text_and_fixes_special_ids() -> None:
    tokenizer = load_tokenizer(ASSETS)
    assert tokenizer.get_vocab_size() == NetworkSettings().vocab_size == 4096
    assert [tokenizer.token_to_id(t) for t in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    texts = [document(i) for i in range(60)] + ["".join(map(chr, range(0x250))), "漢字 \t\n\n  🙂 é 1234", ""]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.encode("2047").tokens == ["2", "0", "4", "7"]


def test_config_names_the_tokens_generation_stops_at() -> None:
    config = json.loads((ASSETS / "config.json").read_text())
    assert config == NetworkSettings().config()
    ends = [TOKEN_ID[t] for t in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    assert json.loads((ASSETS / "generation_config.json").read_text())["eos_token_id"] == ends
    assert config["text_config"]["eos_token_id"] == ends


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoModel, torch.nn.Module]:
    transformers = pytest.importorskip("transformers")
    model = tiny_model()
    folder = tmp_path_factory.mktemp("tiny")
    config = TINY.config("float32")
    config["vision_config"] = {
        "model_type": "glm5_next_vision", "depth": 1, "hidden_size": 32, "image_size": 56,
        "intermediate_size": 64,
        "num_heads": 2, "out_hidden_size": 64, "projection_intermediate_size": 80,
    }  # fmt: skip
    names = ("image_start", "image_end", "video_start", "video_end", "image", "video")
    config.update({f"{name}_token_id": 120 + i for i, name in enumerate(names)})
    (folder / "config.json").write_text(json.dumps(config))
    tensors = checkpoint_tensors(model, torch.float32)
    main = {k: v for k, v in tensors.items() if f".layers.{TINY.num_layers}." not in k}
    save_file(main, folder / "model.safetensors", metadata={"format": "pt"})
    hf = transformers.Glm5NextForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return model, hf.eval()


@torch.no_grad()
def test_logits_equal_transformers_where_selection_drops_tokens(
    oracle: tuple[DemoModel, torch.nn.Module],
) -> None:
    model, hf = oracle
    tokens = torch.randint(0, 120, (2, 170), generator=torch.Generator().manual_seed(1))
    ours = model.logits(model.main(tokens, sparse=True).states)
    dense = model.logits(model.main(tokens, sparse=False).states)
    reference = hf(input_ids=tokens).logits
    scale = reference.abs().max()
    assert (ours - reference).abs().max() < 1e-4 * scale
    assert (dense - reference).abs().max() > 1e-2 * scale


def test_indexer_loss_reaches_the_indexer_alone() -> None:
    model = tiny_model().train()
    tokens = torch.randint(0, 120, (2, 70))
    main = model.main(tokens[:, :-1])
    draft = model.draft(tokens[:, 1:], main.states)
    (main.index_loss + draft.index_loss).backward()
    touched = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert touched == {n for n, _ in model.named_parameters() if "indexer" in n}
    model.zero_grad()
    main = model.main(tokens[:, :-1])
    model.logits(model.draft(tokens[:, 1:], main.states).states).square().mean().backward()
    untouched = {n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0}
    assert untouched == {n for n, _ in model.named_parameters() if "indexer" in n}


def test_chunked_delta_rule_equals_the_recurrence_under_the_strongest_decay() -> None:
    torch.manual_seed(3)
    heads, dim, length = 2, 16, 128
    qkv = torch.randn(1, length, 3 * heads * dim)
    gate = 6 * torch.randn(1, length, heads * dim)
    beta, a_log, dt_bias = torch.randn(1, length, heads), 0.5 * torch.randn(heads), torch.randn(heads * dim)
    ours = chunked_delta_rule(chunk_factors(qkv, gate, beta, a_log, dt_bias, heads, -5.0), 1, heads)
    q, k, v = (x.unflatten(-1, (heads, dim))[0].double() for x in qkv.split(heads * dim, -1))
    q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt() / dim**0.5
    k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    rate = a_log.exp().double()[:, None]
    g = -5 * torch.sigmoid(rate * (gate[0] + dt_bias).unflatten(-1, (heads, dim)).double())
    state = torch.zeros(heads, dim, dim, dtype=torch.float64)
    for t in range(length):
        state = state * g[t].exp()[..., None]
        d = beta[0, t].sigmoid().double()[:, None] * (v[t] - (state * k[t][..., None]).sum(1))
        state = state + k[t][..., None] * d[:, None]
        torch.testing.assert_close(
            ours[0, t].double(), (state * q[t][..., None]).sum(1), rtol=1e-4, atol=1e-5
        )


def test_unit_lower_inverse_and_its_gradient() -> None:
    a = torch.randn(2, 16, 16, dtype=torch.float64).tril(-1).requires_grad_()
    eye = torch.eye(16, dtype=torch.float64)
    torch.testing.assert_close(UnitLowerInverse.apply(a) @ (eye + a), eye.expand(2, -1, -1))
    assert torch.autograd.gradcheck(lambda x: UnitLowerInverse.apply(x.tril(-1)), (a,))


def test_kneser_ney_sums_to_one_and_knows_its_text() -> None:
    vocab = 11
    tokens = torch.randint(0, vocab - 1, (600,), generator=torch.Generator().manual_seed(0))
    tokens[1::3] = 4
    model = KneserNey(tokens, 4, vocab)
    contexts = torch.cat([tokens[5:8][None], torch.randint(0, vocab, (20, 3))])
    for context in contexts:
        p = model.probabilities(context.expand(vocab, 3), torch.arange(vocab))
        assert p.sum().item() == pytest.approx(1.0, abs=1e-9)
        assert (p > 0).all()
    drafter = TrigramDrafter(torch.tensor([1, 2, 3, 1, 2, 3, 1, 2, 5]), vocab)
    assert drafter.draft(torch.tensor([1, 9]), torch.tensor([2, 1])).tolist() == [3, 2]


def test_training_step_learns_and_exports(tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = NetworkSettings(
        vocab_size=4096, hidden_size=64, num_layers=2, mla_layers=(1,), dense_layers=1, intermediate_size=64,
        experts=4, moe_intermediate_size=32, kda_head_dim=16, qk_head_dim=16, v_head_dim=16, q_lora_rank=32,
        kv_lora_rank=16, index_heads=4, index_head_dim=8, index_topk=16,
    )  # fmt: skip
    stream = generate(ASSETS, 1, 1, []).stream
    model = DemoModel(settings).precision(torch.bfloat16).train()
    t = TrainSettings(batch=4, length=64, max_steps=12, warmup_steps=2, report_seconds=0.0, peak_lr=1e-2)
    trainer = Trainer(model, stream, t, "cpu")
    trainer.prepare(compile_step=False)
    losses = trainer.run(tmp_path)
    assert losses["loss"] < 8.0  # uniform is ln 4096 = 8.3
    assert any(r.e_score_correction_bias.abs().max() > 0 for r in model.routers())
    write_checkpoint(model, tmp_path)
    tensors = {k: v for shard in SHARDS for k, v in load_file(tmp_path / shard).items()}
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(tensors)
    assert tensors["model.language_model.layers.1.mlp.experts.3.up_proj.weight"].dtype == torch.bfloat16
    again = DemoModel(settings)
    load_tensors(again, tensors)
    tokens = torch.from_numpy(stream.tokens[:65].astype("int64"))[None]
    with torch.no_grad():
        ours = again.logits(again.main(tokens).states)
        model.precision(torch.float32)
        load_tensors(model, checkpoint_tensors(again))
        assert torch.equal(ours, model.eval().logits(model.main(tokens).states))


def test_f32_tensors_that_bf16_could_hold_are_refused() -> None:
    with pytest.raises(ExportError, match="hc_attn_base"):
        check_beyond_bf16({"model.language_model.layers.0.hc_attn_base": torch.ones(24)})


def test_windows_begin_at_documents_and_do_not_overlap() -> None:
    stream = encode(ASSETS, [document(i) for i in range(100)])
    starts = windows(stream, 200, 10)
    assert set(starts) <= set(stream.starts)
    assert (np.diff(starts) >= 200).all()


def test_sinkhorn_kernel_equals_the_plain_form_with_its_gradient() -> None:
    program = (
        "import torch\n"
        "from tests.kernels.interpreting import do_less\n"
        "from tools.train_demo.sinkhorn import try_kernel\n"
        "do_less()\n"
        "torch.manual_seed(0)\n"
        "assert try_kernel('cpu')\n"
    )
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], cwd=root, env=environment, check=True, timeout=120)
