"""Makes the demo model.

python -m tools.train_demo tokenizer --out OUT   learns a new tokenizer; trained weights do not fit it
python -m tools.train_demo run --out OUT         trains, exports and measures; one GPU, under eight minutes
python -m tools.train_demo probe --out OUT       measures the step time on a GPU
python -m tools.train_demo run --smoke --out OUT the whole way in two minutes on a CPU; learns nothing
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch

from .card import write_card
from .data import encode, generate, held_out_documents, held_out_file
from .evaluate import EvaluationSize, Evaluator
from .export import write_checkpoint
from .fused import plain_regions
from .model import DemoModel
from .settings import NetworkSettings
from .tokenizer import load_tokenizer, write_tokenizer
from .train import Trainer, TrainSettings

EVALUATION_SECONDS = 75.0  # kept free after training
ASSETS = Path(__file__).parents[2] / "src/intarsia/assets/demo"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo", description=__doc__)
    parser.add_argument("action", choices=("tokenizer", "run", "probe"))
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    parser.add_argument(
        "--minutes", type=float, default=5.5, help="training time, without data and evaluation"
    )
    parser.add_argument(
        "--limit-minutes", type=float, default=7.8, help="whole run; training is cut to keep it"
    )
    parser.add_argument("--jobs", type=int, default=400, help="training text, in 2,000 documents")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--batch", type=int, default=TrainSettings.batch)
    parser.add_argument("--peak-lr", type=float, default=TrainSettings.peak_lr)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    return parser.parse_args()


def machine(device: str) -> str:
    gpu = torch.cuda.get_device_name() if device == "cuda" else platform.machine() + " CPU"
    return f"one {gpu} (torch {torch.__version__}, Python {platform.python_version()})"


def report(text: str, began: float) -> None:
    print(f"[{time.monotonic() - began:6.1f} s] {text}", flush=True)


def run(a: argparse.Namespace, settings: NetworkSettings) -> dict[str, Any]:
    """Data, training, export, evaluation; every result is under `a.out` as soon as it exists."""
    began = time.monotonic()
    a.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    probe = a.action == "probe"
    size = EvaluationSize(2, 1, 4, 4, 6, 6, 4) if a.smoke else EvaluationSize()
    held = held_out_documents(60 if a.smoke or probe else 3000)
    (a.out / "heldout.txt").write_text(held_out_file(held))
    corpus = generate(ASSETS, a.jobs, a.workers, held)
    report(
        f"{corpus.documents} documents, {len(corpus.stream.tokens)} tokens, {corpus.shared_sentences} shared",
        began,
    )
    held_stream = encode(ASSETS, held)

    torch.manual_seed(0)
    t = TrainSettings(seconds=60 * a.minutes, batch=a.batch, peak_lr=a.peak_lr)
    if a.smoke:
        t = dataclasses.replace(t, batch=2, length=192, max_steps=6, report_seconds=0.0, export_seconds=20.0)
    torch.set_float32_matmul_precision("high")
    model = DemoModel(settings).to(device).precision(torch.bfloat16).train()
    trainer = Trainer(model, corpus.stream, t, device)
    trainer.prepare(not a.no_compile)
    left = 60 * a.limit_minutes - (time.monotonic() - began) - EVALUATION_SECONDS
    trainer.t = t = dataclasses.replace(t, seconds=min(t.seconds, max(30.0, left)))
    trained = trainer.run(a.out)
    report(f"trained {trained['steps']:.0f} steps", began)
    sizes = write_checkpoint(model, a.out)
    report(f"exported {sizes}", began)
    del trainer
    if probe:
        return trained
    plain_regions()
    torch.set_float32_matmul_precision("highest")
    facts = {
        **trained,
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": sum(sizes.values()),
        "command": "python -m tools.train_demo " + " ".join(sys.argv[1:]),
        "date": datetime.date.today().isoformat(),
        "machine": machine(device),
        "documents": corpus.documents,
        "corpus_tokens": len(corpus.stream.tokens),
        "sentences": corpus.sentences,
        "shared": corpus.shared_sentences,
        "batch": t.batch,
        "length": t.length,
        "topk": settings.index_topk,
        "settings": dataclasses.asdict(t),
    }
    evaluator = Evaluator(a.out, settings, load_tokenizer(ASSETS), device, size)
    training = torch.from_numpy(corpus.stream.tokens.astype("int64")).to(device)
    steps = (
        lambda: {"samples": evaluator.samples()},
        evaluator.arithmetic,
        lambda: evaluator.drafting(held_stream, training),
        lambda: evaluator.language(held_stream, training),
    )
    for step in steps:
        found = step()
        facts.update(found)
        report(json.dumps(found, indent=1, ensure_ascii=False), began)
        (a.out / "metrics.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
        write_card(a.out / "README.md", {"samples": [], **facts})
    report("done", began)
    return facts


def main() -> None:
    a, settings = arguments(), NetworkSettings()
    if a.action == "tokenizer":
        write_tokenizer(a.out, settings)
        return
    if a.smoke:
        a.jobs, a.workers = 2, min(a.workers, 2)
    if a.action == "probe":
        a.jobs, a.minutes = 16, 0.3
    run(a, settings)


if __name__ == "__main__":
    main()
