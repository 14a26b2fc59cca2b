"""What ranks send each other, and the time that it costs over links of known speed.

Every rank's float32 partial sums go to every other rank twice a layer, after attention and after the
feed-forward half; where a token is drawn, so do the best candidates of each rank's part of the vocabulary;
and each step eight bytes by which ranks see that they do the same.
"""

from dataclasses import dataclass
from typing import Any

from intarsia.core.config import CPU_PROMPT_ROWS, GPU_PROMPT_ROWS
from intarsia.core.rows import padded_count
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.split import shares, split_rule

PROMPT_TOKENS = 8192
"""Of the prompt that is counted when no context is given."""
CAPTURED_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of captured steps; of more rows a step is padded to whole tiles."""
CANDIDATES = 128
"""Of each rank's part, offered for a nucleus; a flat row asks for more."""
_FLOAT32 = 4
_CANDIDATE = 8
_AGREEMENT = 8


@dataclass(frozen=True, slots=True)
class Link:
    """What carries a rank's messages: seconds from one rank's numbers to the other's, and bytes a second each
    way. `measured` on machines of this project; the others are what such links are known for.
    """

    name: str
    latency: float
    bandwidth: float
    measured: bool = False


LINKS = (
    Link("NVLink of H200", 2.6e-6, 160e9, True),
    Link("PCIe 5 x16", 12e-6, 50e9),
    Link("400 GbE, RDMA", 15e-6, 45e9),
    Link("100 GbE, RDMA", 15e-6, 11.5e9),
    Link("100 GbE, TCP", 60e-6, 8e9),
    Link("10 GbE, TCP", 80e-6, 1.15e9),
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Exchanges one after another, and the bytes that a rank's busiest line carries in them, each way."""

    exchanges: int
    bytes: int

    def seconds(self, link: Link, hops: int = 1) -> float:
        """Time spent on exchanges, nothing overlapped; each waits for `hops` lines."""
        return self.exchanges * hops * link.latency + self.bytes / link.bandwidth


@dataclass(frozen=True, slots=True)
class Wire:
    """A step in which each of `streams` streams writes a token, and a prompt of `prompt_tokens`.

    The likeliest token is drawn in `step`, one from a nucleus in `sampled`; `whole_row` is what a row costs
    more where a reply may ask for any token: whole rows of logits (penalties, grammars, log-probabilities).
    """

    streams: int
    step: Traffic
    sampled: Traffic
    whole_row: int
    prompt_tokens: int
    prompt: Traffic
    ring: bool
    hops: int

    @property
    def token_bytes(self) -> float:
        """Bytes a token that is written."""
        return self.step.bytes / self.streams

    def as_dict(self) -> dict[str, Any]:
        """JSON values; seconds for every known link."""
        return {
            "streams": self.streams,
            "ring": self.ring,
            "step": {"exchanges": self.step.exchanges, "bytes": self.step.bytes},
            "sampled_step": {"exchanges": self.sampled.exchanges, "bytes": self.sampled.bytes},
            "bytes_per_token": self.token_bytes,
            "bytes_per_whole_row": self.whole_row,
            "prompt_tokens": self.prompt_tokens,
            "prompt": {"exchanges": self.prompt.exchanges, "bytes": self.prompt.bytes},
            "links": [
                {
                    "name": link.name,
                    "latency": link.latency,
                    "bandwidth": link.bandwidth,
                    "measured": link.measured,
                    "step_seconds": self.step.seconds(link, self.hops),
                    "prompt_seconds": self.prompt.seconds(link, self.hops),
                }
                for link in LINKS
            ],
        }


def wire(
    config: Glm5NextConfig,
    ranks: int,
    *,
    streams: int = 1,
    prompt_tokens: int = PROMPT_TOKENS,
    ring: bool = False,
    device: str = "cpu",
) -> Wire:
    """The traffic of `ranks` ranks without guesses.

    Where every rank reaches every other one, a rank's numbers leave it once for each of the others, over one
    port. In a `ring` they go both ways round, and a line carries those of half the ranks.
    """
    copies = ranks // 2 if ring else ranks - 1
    by_host = ring or device == "cpu"  # then rows that only pad do not travel
    rows = streams if by_host else _captured_rows(streams)
    row = config.hidden_size * _FLOAT32
    layers = config.num_hidden_layers
    part = max(len(own) for own in shares(split_rule(config, "lm_head"), ranks)) * _FLOAT32
    sums = 2 * layers * rows * row + _AGREEMENT
    nucleus = _FLOAT32 + (CANDIDATES + 2) * _CANDIDATE  # the peak; candidates, the least of them, the mass
    most = CPU_PROMPT_ROWS if device == "cpu" else GPU_PROMPT_ROWS
    pieces = [min(most, prompt_tokens - begin) for begin in range(0, prompt_tokens, most)]
    pieces = pieces if by_host else [padded_count(piece) for piece in pieces]
    # a prompt also runs through the MTP layer, which guesses later
    exchanges = 2 * (layers + config.num_nextn_predict_layers)
    prompt = exchanges * sum(pieces) * row + len(pieces) * _AGREEMENT
    return Wire(
        streams=streams,
        step=Traffic(2 * layers + 2, (sums + rows * _CANDIDATE) * copies),
        sampled=Traffic(2 * layers + 3, (sums + rows * nucleus) * copies),
        whole_row=part * copies,
        prompt_tokens=prompt_tokens,
        prompt=Traffic((exchanges + 1) * len(pieces), prompt * copies),
        ring=ring,
        hops=ranks // 2 if ring else 1,
    )


def _captured_rows(streams: int) -> int:
    return next((rows for rows in CAPTURED_ROWS if rows >= streams), padded_count(streams))
