"""The training loop: a step captured as a CUDA graph, a schedule driven by the clock, exports on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from .data import Stream
from .export import write_checkpoint
from .fused import compile_regions, fused, plain_regions
from .model import DemoModel
from .sinkhorn import try_kernel


@dataclass(frozen=True)
class TrainSettings:
    """How long and how fast to learn; fractions are of the training time."""

    seconds: float = 330.0
    max_steps: int = 1_000_000
    batch: int = 64
    length: int = 512
    peak_lr: float = 3e-3
    warmup_steps: int = 200
    hold: float = 0.25  # constant rate until here, then linear to the floor
    floor: float = 0.01
    sparse_from: float = 0.25  # dense attention before, so that the indexer learns from whole distributions
    betas: tuple[float, float] = (0.9, 0.97)
    weight_decay: float = 0.05
    clip: float = 1.0
    draft_weight: float = 0.3
    index_weight: float = 0.5
    balance_rate: float = 1e-3
    report_seconds: float = 5.0
    export_seconds: float = 90.0
    seed: int = 17

    def rate(self, step: int, fraction: float) -> float:
        """Share of the peak learning rate."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        falling = max(0.0, (fraction - self.hold) / (1 - self.hold))
        return warm * max(self.floor, 1.0 - falling)


@fused
def token_loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross entropy in nats, and the share of targets that are the arg max."""
    logits = logits.float()
    loss = functional.cross_entropy(logits, targets)
    return loss, (logits.detach().argmax(-1) == targets).float().mean()


class FlatAdamW:
    """AdamW over all parameters laid out as one vector: few launches, and nothing the host has to know."""

    def __init__(self, model: DemoModel, t: TrainSettings) -> None:
        params = list(model.parameters())
        self.settings = t
        self.values = torch.cat([p.detach().flatten() for p in params])
        self.grads = torch.zeros_like(self.values)
        decay = [
            torch.full((p.numel(),), float(p.dim() >= 2 and p.shape[0] > 24), device=p.device) for p in params
        ]
        self.decay = torch.cat(decay) * t.weight_decay
        self.first, self.second = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self.steps = torch.zeros((), device=self.values.device)
        self.lr = torch.zeros((), device=self.values.device)
        self.norm = torch.zeros((), device=self.values.device)
        offset = 0
        for p in params:
            end = offset + p.numel()
            p.data = self.values[offset:end].view_as(p)
            p.grad = self.grads[offset:end].view_as(p)
            offset = end

    @torch.no_grad()
    def step(self) -> None:
        """One update from the accumulated gradients; one that is not finite leaves the moments finite."""
        t = self.settings
        self.norm.copy_(torch.linalg.vector_norm(self.grads))
        scale = (t.clip / (self.norm + 1e-6)).clamp(max=1.0)
        g = (self.grads * scale).nan_to_num_(0.0, 0.0, 0.0)
        self.steps.add_(1)
        self.first.lerp_(g, 1 - t.betas[0])
        self.second.lerp_(g * g, 1 - t.betas[1])
        unbias1 = 1 - torch.pow(t.betas[0], self.steps)
        unbias2 = 1 - torch.pow(t.betas[1], self.steps)
        update = (self.first / unbias1) / ((self.second / unbias2).sqrt() + 1e-8)
        self.values.sub_(self.lr * (update + self.decay * self.values))


class Trainer:
    """Holds the model, the tokens and the static tensors a captured step reads."""

    METRICS = ("loss", "mtp_loss", "index_kl", "acc", "mtp_acc", "grad_norm")

    def __init__(self, model: DemoModel, stream: Stream, t: TrainSettings, device: str) -> None:
        self.t, self.model, self.device = t, model, device
        self.tokens = torch.from_numpy(stream.tokens.view("int16")).to(device)
        last = len(stream.tokens) - t.length - 2
        self.doc_starts = torch.from_numpy(stream.starts[stream.starts <= last]).to(device)
        self.optimizer = FlatAdamW(model, t)
        self.starts = torch.zeros(t.batch, dtype=torch.int64, device=device)
        self.span = torch.arange(t.length + 2, device=device)
        self.sums = torch.zeros(len(self.METRICS), device=device)
        self.balance = torch.zeros((), device=device)
        self.generator = torch.Generator(device=device).manual_seed(t.seed)
        self.graphs: dict[bool, Callable[[], None]] = {}
        self.pool: tuple[int, int] | None = None  # both graphs replay in turn, so they share their memory

    def draw(self) -> None:
        """Chooses the documents at which the next step's sequences begin."""
        picks = torch.randint(
            len(self.doc_starts), (self.t.batch,), device=self.device, generator=self.generator
        )
        self.starts.copy_(self.doc_starts[picks])

    def step(self, sparse: bool) -> None:
        """Forward, backward, update, router balance; reads and writes static tensors only."""
        t, model = self.t, self.model
        self.optimizer.grads.zero_()
        tokens = self.tokens[self.starts[:, None] + self.span].long() & 0xFFFF
        n = t.length
        main = model.main(tokens[:, :n], sparse)
        loss, acc = token_loss(model.lm_head(main.states).flatten(0, 1), tokens[:, 1 : n + 1].flatten())
        draft = model.draft(tokens[:, 1 : n + 1], main.states, sparse)
        draft_loss, draft_acc = token_loss(
            model.lm_head(draft.states).flatten(0, 1), tokens[:, 2 : n + 2].flatten()
        )
        kl = main.index_loss + draft.index_loss
        (loss + t.draft_weight * draft_loss + t.index_weight * kl).backward()
        self.optimizer.step()
        for router in model.routers():
            router.balance(self.balance)
        found = torch.stack([loss, draft_loss, kl, acc, draft_acc, self.optimizer.norm]).detach()
        self.sums.add_(found)

    def prepare(self, compile_step: bool) -> None:
        """Compiles and captures both steps where the device allows; says what it fell back to."""
        if not self.device.startswith("cuda"):
            self.graphs = {sparse: (lambda s=sparse: self.step(s)) for sparse in (False, True)}
            return
        saved = [x.clone() for x in self._state()]
        began = time.monotonic()
        print(f"Sinkhorn kernel: {try_kernel(self.device)}", flush=True)
        if compile_step:
            compile_regions()
            try:
                self._warm()
                print(f"compiled in {time.monotonic() - began:.1f} s", flush=True)
            except Exception as error:  # any compiler failure leaves the plain form
                print(f"compilation failed, going on without it: {str(error)[:400]}", flush=True)
                plain_regions()
        for sparse in (False, True):
            try:
                self.graphs[sparse] = self._capture(sparse)
            except Exception as error:
                print(f"graph capture failed, running step by step: {str(error)[:400]}", flush=True)
                torch.cuda.synchronize()
                self.graphs[sparse] = lambda s=sparse: self.step(s)
        for x, old in zip(self._state(), saved, strict=True):
            x.copy_(old)
        self.sums.zero_()
        memory = torch.cuda.max_memory_allocated() / 2**30
        print(f"ready after {time.monotonic() - began:.1f} s, peak {memory:.1f} GiB", flush=True)

    def _state(self) -> list[Tensor]:
        o = self.optimizer
        return [
            o.values,
            o.first,
            o.second,
            o.steps,
            *(r.e_score_correction_bias for r in self.model.routers()),
        ]

    def _warm(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.draw()
            for sparse in (False, True):
                self.step(sparse)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()

    def _capture(self, sparse: bool) -> Callable[[], None]:
        self._warm()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self.step(sparse)
        self.pool = graph.pool()
        return graph.replay

    def run(self, out: Path) -> dict[str, float]:
        """Trains for the set time, exporting on the way; returns the last metrics and the counts."""
        t = self.t
        began = reported = exported = time.monotonic()
        done = step = 0
        metrics: dict[str, float] = {}
        every = 20 if self.device.startswith("cuda") else 1
        fraction = 0.0
        while fraction < 1.0:
            rate = t.rate(step, fraction)
            self.optimizer.lr.fill_(t.peak_lr * rate)
            self.balance.fill_(t.balance_rate * rate)
            self.draw()
            sparse = fraction >= t.sparse_from
            self.graphs[sparse]()
            step += 1
            if step % every:
                continue
            if self.device.startswith("cuda"):
                torch.cuda.synchronize()
            now = time.monotonic()
            fraction = max((now - began) / t.seconds, step / t.max_steps)
            if now - reported >= t.report_seconds or fraction >= 1.0:
                values = (self.sums / (step - done)).tolist()
                self.sums.zero_()
                metrics = dict(zip(self.METRICS, values, strict=True))
                metrics["step_ms"] = 1000 * (now - reported) / (step - done)
                shown = " ".join(f"{k} {v:.4g}" for k, v in metrics.items())
                head = f"{now - began:6.1f} s step {step} sparse {int(sparse)} lr {t.peak_lr * rate:.2e}"
                print(head, shown, flush=True)
                reported, done = now, step
            if now - exported >= t.export_seconds:
                write_checkpoint(self.model, out)
                exported = time.monotonic()
        metrics["steps"] = step
        metrics["tokens"] = step * t.batch * t.length
        metrics["seconds"] = time.monotonic() - began
        return metrics
