"""Doubly stochastic mixing matrices with their gradient: plain torch, and one GPU kernel each way.

Twenty iterations are some eighty tiny operations at sixteen sites: kernel by kernel they would cost more than
the rest of a training step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU path needs none
    triton = None

BLOCK = 64
kernel_enabled = True


def plain_sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Mixing matrices [..., N, N] (from stream, to stream): softmax, then columns and rows in turn."""
    mixing = logits.softmax(-1) + eps
    mixing = mixing / (mixing.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        mixing = mixing / (mixing.sum(-1, keepdim=True) + eps)
        mixing = mixing / (mixing.sum(-2, keepdim=True) + eps)
    return mixing


if triton is not None:

    @triton.jit
    def forward_kernel(
        x_ptr, y_ptr, sums_ptr, count, eps, ITERATIONS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr
    ):
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None, None]
        i, j = tl.arange(0, N)[None, :, None], tl.arange(0, N)[None, None, :]
        inside = row < count
        at = (row * N + i) * N + j
        x = tl.load(x_ptr + at, mask=inside, other=0.0)
        x = tl.exp(x - tl.max(x, axis=2, keep_dims=True))
        x = x / tl.sum(x, axis=2, keep_dims=True) + eps
        total = tl.sum(x, axis=1, keep_dims=True) + eps
        tl.store(sums_ptr + row * N + j, total, mask=inside)
        x = x / total
        for step in range(ITERATIONS - 1):
            total = tl.sum(x, axis=2, keep_dims=True) + eps
            tl.store(sums_ptr + ((2 * step + 1) * count + row) * N + i, total, mask=inside)
            x = x / total
            total = tl.sum(x, axis=1, keep_dims=True) + eps
            tl.store(sums_ptr + ((2 * step + 2) * count + row) * N + j, total, mask=inside)
            x = x / total
        tl.store(y_ptr + at, x, mask=inside)

    @triton.jit
    def backward_kernel(
        y_ptr,
        sums_ptr,
        dy_ptr,
        dx_ptr,
        count,
        eps,
        ITERATIONS: tl.constexpr,
        N: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        # Each division y = x / total has dx = (dy - sum(dy * y)) / total, and x = y * total.
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None, None]
        i, j = tl.arange(0, N)[None, :, None], tl.arange(0, N)[None, None, :]
        inside = row < count
        at = (row * N + i) * N + j
        y = tl.load(y_ptr + at, mask=inside, other=0.0)
        d = tl.load(dy_ptr + at, mask=inside, other=0.0)
        for back in range(ITERATIONS - 1):
            step = ITERATIONS - 2 - back
            total = tl.load(sums_ptr + ((2 * step + 2) * count + row) * N + j, mask=inside, other=1.0)
            d = (d - tl.sum(d * y, axis=1, keep_dims=True)) / total
            y = y * total
            total = tl.load(sums_ptr + ((2 * step + 1) * count + row) * N + i, mask=inside, other=1.0)
            d = (d - tl.sum(d * y, axis=2, keep_dims=True)) / total
            y = y * total
        total = tl.load(sums_ptr + row * N + j, mask=inside, other=1.0)
        d = (d - tl.sum(d * y, axis=1, keep_dims=True)) / total
        p = y * total - eps
        d = p * (d - tl.sum(d * p, axis=2, keep_dims=True))
        tl.store(dx_ptr + at, d, mask=inside)


class KernelSinkhorn(torch.autograd.Function):
    """The same by one kernel forward, which keeps the sums, and one backward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, iterations: int, eps: float) -> Tensor:
        logits = logits.contiguous()
        n = logits.shape[-1]
        count = logits.numel() // (n * n)
        out = torch.empty_like(logits)
        sums = torch.empty(2 * iterations - 1, count, n, device=logits.device)
        grid = (triton.cdiv(count, BLOCK),)
        forward_kernel[grid](logits, out, sums, count, eps, iterations, n, BLOCK)
        ctx.save_for_backward(out, sums)
        ctx.iterations, ctx.eps = iterations, eps
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        out, sums = ctx.saved_tensors
        grad = grad.contiguous()
        found = torch.empty_like(out)
        count, n = sums.shape[1:]
        grid = (triton.cdiv(count, BLOCK),)
        backward_kernel[grid](out, sums, grad, found, count, ctx.eps, ctx.iterations, n, BLOCK)
        return found, None, None


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Mixing matrices [..., N, N] F32 from logits, by the kernel where there is one."""
    if kernel_enabled and triton is not None and logits.is_cuda:
        return KernelSinkhorn.apply(logits, iterations, eps)
    return plain_sinkhorn(logits, iterations, eps)


def try_kernel(device: str) -> bool:
    """Compares kernel and plain form on the device, gradients too; it stays off unless they agree."""
    global kernel_enabled  # noqa: PLW0603  (one device a process)
    x = 3 * torch.randn(1000, 4, 4, device=device)
    grad = torch.randn_like(x)
    try:
        found = []
        for form in (KernelSinkhorn.apply, plain_sinkhorn):
            leaf = x.clone().requires_grad_()
            y = form(leaf, 20, 1e-6)
            y.backward(grad)
            found.append((y.detach(), leaf.grad))
        pairs = zip(*found, strict=True)
        kernel_enabled = all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)
    except Exception as error:  # whatever the compiler says, the plain form remains
        print(f"no Sinkhorn kernel: {str(error)[:300]}", flush=True)
        kernel_enabled = False
    return kernel_enabled
