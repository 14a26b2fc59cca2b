"""Reading tokens from the device: the one wait of a step."""

import torch
from torch import Tensor


class Reading:
    """Integers of a tensor [n] on their way to the host, while more is launched."""

    def __init__(self, tokens: Tensor) -> None:
        """Begins to copy what the tensor holds once everything launched so far is done."""
        self._done: torch.cuda.Event | None = None
        if tokens.device.type != "cuda":
            self._host = tokens.clone()
            return
        self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        self._host.copy_(tokens, non_blocking=True)
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record(torch.cuda.current_stream(tokens.device))

    def get(self) -> list[int]:
        """The integers. Waits for what was launched before, and for nothing after it."""
        if self._done is not None:
            self._done.synchronize()
        return list(self._host.tolist())


def read(tokens: Tensor) -> list[int]:
    """Integers of a tensor [n], once everything before is done. Waits without polling values."""
    return Reading(tokens).get()
