"""What the host decides about caches and kernels read: where pages lie, and which copy of a state counts."""

import torch


class Tables:
    """`current` int32 [streams] and `page_table` int32 [streams, pages of a window], on the device.

    The host owns both: it writes `copies` (numpy) and `pages`, the same in its own memory, and `publish`
    brings what changed to the device before a step, in one copy that nobody waits for. On a CPU they are one
    memory.
    """

    def __init__(self, streams: int, window_pages: int, null_page: int, device: torch.device | str) -> None:
        """Every page is `null_page`, every copy 0."""
        on_host = torch.empty(streams * (1 + window_pages), dtype=torch.int32)
        on_host[:streams], on_host[streams:] = 0, null_page
        on_device = on_host.to(device)
        self.current = on_device[:streams]
        self.page_table = on_device[streams:].view(streams, window_pages)
        self.copies = on_host[:streams].numpy()
        self.pages = on_host[streams:].view(streams, window_pages)
        self._host, self._device = on_host, on_device
        self._shared = on_device.device.type == "cpu"
        self._numbers = on_host.numpy()
        self._published = b"" if self._shared else self._numbers.tobytes()

    def take(self, other: "Tables") -> None:
        """Hold what `other` holds, of the same shape."""
        self._host.copy_(other._host)

    def publish(self) -> None:
        """Let the device see what the host has written."""
        if self._shared:
            return
        numbers = self._numbers.tobytes()  # as bytes, which compare sooner than arrays
        if numbers == self._published:
            return
        self._published = numbers
        # memory of its own: the copy is under way while the host writes on
        self._device.copy_(self._host.pin_memory(), non_blocking=True)
