"""Several ranks' ends of exchanges on one GPU, each with a stream of its own."""

import torch

from intarsia.kernels.exchange import Exchange, buffer_bytes

MOST = 32 * 512


class Ranks:
    """Their buffers lie beside each other; programs of all ranks that wait must find room on the GPU."""

    def __init__(self, ranks: int, timeout: float = 20.0) -> None:
        words = buffer_bytes(ranks, MOST, True) // 8 + 1
        self.buffers = [torch.zeros(words, dtype=torch.int64, device="cuda") for _ in range(ranks)]
        addresses = [buffer.data_ptr() for buffer in self.buffers]
        device = torch.device("cuda", 0)
        self.ends = [
            Exchange(addresses, rank, device, most=MOST, wide=True, timeout=timeout, keep=self.buffers)
            for rank in range(ranks)
        ]
        self.streams = [torch.cuda.Stream() for _ in range(ranks)]
        torch.cuda.synchronize()

    def each(self, call, tensors):
        results = []
        for end, stream, own in zip(self.ends, self.streams, tensors, strict=True):
            with torch.cuda.stream(stream):
                results.append(call(end, own))
        return results

    def sum(self, partials):
        return self.each(Exchange.sum_in_rank_order, partials)

    def gather(self, tensors):
        return self.each(Exchange.gather, tensors)


def numbers(ranks, count, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    scale = torch.tensor([1e8, 1.0, 1e-3], device="cuda")
    return [torch.randn(count, generator=generator, device="cuda") * scale[rank % 3] for rank in range(ranks)]
