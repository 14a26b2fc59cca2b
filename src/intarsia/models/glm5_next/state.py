"""What streams leave behind between steps: paged caches and fixed state, allocated once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.core.config import CacheType
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.rows import Piece, Rows, rows_of
from intarsia.models.errors import StateError
from intarsia.models.glm5_next.tables import Tables

DEFAULT_PAGE = 512
_LATENTS = {"bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True)
class StateSettings:
    """How much state to hold.

    streams: sequences at once; window: tokens a stream may grow to; pages: pages of `page` tokens shared by
    all streams; step_rows: rows of one stream that a recurrent step may run before some are taken back (1 +
    drafts).
    """

    streams: int
    window: int
    pages: int
    page: int = DEFAULT_PAGE
    step_rows: int = 1

    @property
    def window_pages(self) -> int:
        return -(-self.window // self.page)


@dataclass(frozen=True, slots=True)
class MlaCache:
    """One MLA layer: latents [pages + 1, page, L], pooled keys [pages + 1, page / group, D], tail ring, and
    the scales [pages + 1, page] of latents in FP8."""

    latents: Tensor
    pooled: Tensor
    tail: Tensor
    latent_scales: Tensor | None = None


@dataclass(frozen=True, slots=True)
class KdaCache:
    """One KDA layer's views: memory [streams, copies, H, K, V] float32 and the ring of raw columns."""

    memory: Tensor
    window: Tensor
    current: Tensor


class State:
    """All caches of a network. One tensor a cache family; the last page is the null page.

    latents [M, pages + 1, page, L] and pooled [M, pages + 1, page / group, D], M counting the MLA layers and
    then the MTP layer; latent_scales float32 [M, pages + 1, page], None unless latents are FP8;
    tail [M, streams, ring, 2 D]; memory [kda layers, streams, copies, H, K, V] float32;
    window [kda layers, streams, ring, channels]; current int32 [streams], the copy that holds a stream's
    committed state; page_table int32 [streams, pages of a window], null where nothing is mapped. The last two
    are the host's to write, in `tables`.
    """

    def __init__(
        self,
        config: Glm5NextConfig,
        settings: StateSettings,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        linear_heads: int | None = None,
        latents: CacheType = "auto",
    ) -> None:
        """`linear_heads` counts the KDA heads of this rank, None: all of them; `latents` says how latents are
        stored, by default in `dtype` as everything else that is not float32."""
        if settings.page % config.index_kpool:
            raise StateError(
                "page",
                found=f"{settings.page} tokens",
                expected=f"a multiple of the pool size {config.index_kpool}",
                action="choose another page size",
            )
        self.settings = settings
        mla = len(config.mla_layers) + config.num_nextn_predict_layers
        kda = len(config.kda_layers)
        streams, pages, page = settings.streams, settings.pages + 1, settings.page
        heads, width = linear_heads or config.linear_num_heads, config.linear_head_dim
        key = config.index_head_dim
        ring = config.index_kpool - 1 + settings.step_rows
        conv_ring = config.linear_conv_kernel_dim - 1 + settings.step_rows

        def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.latents = zeros(mla, pages, page, config.kv_lora_rank, dtype=_LATENTS.get(latents, dtype))
        self.latent_scales = zeros(mla, pages, page, dtype=torch.float32) if latents == "fp8" else None
        self.pooled = zeros(mla, pages, page // config.index_kpool, key)
        self.tail = zeros(mla, streams, ring, 2 * key)
        self.memory = zeros(kda, streams, settings.step_rows, heads, width, width, dtype=torch.float32)
        self.window = zeros(kda, streams, conv_ring, 3 * heads * width)
        self.tables = Tables(streams, settings.window_pages, settings.pages, device)
        self.current, self.page_table = self.tables.current, self.tables.page_table

    @property
    def null_page(self) -> int:
        return self.settings.pages

    def mla(self, index: int) -> MlaCache:
        """Views of the index-th MLA layer; the MTP layer comes after the main ones."""
        scales = None if self.latent_scales is None else self.latent_scales[index]
        return MlaCache(self.latents[index], self.pooled[index], self.tail[index], scales)

    def kda(self, index: int) -> KdaCache:
        """Views of the index-th KDA layer."""
        return KdaCache(self.memory[index], self.window[index], self.current)

    def reset(self, stream: int) -> None:
        """Begin a new sequence: zero delta-rule state. Rings and pages need nothing, positions guard them."""
        self.memory[:, stream, 0] = 0
        self.tables.copies[stream] = 0

    def commit(self, stream: int, rows: int) -> None:
        """Keep the first `rows` rows of the stream's last recurrent step."""
        self.tables.copies[stream] = rows - 1

    def map_pages(self, stream: int, pages: Sequence[int]) -> None:
        """Make a stream's first pages the physical ones `pages`; for callers without a pool."""
        self.tables.pages[stream, : len(pages)] = torch.tensor(pages, dtype=torch.int32)

    def rows(self, pieces: Sequence[Piece]) -> Rows:
        """`pieces` as rows of a step, with what the host has decided about these caches since then."""
        self.tables.publish()
        return rows_of(pieces, self.page_table)

    @property
    def paged(self) -> tuple[Tensor, ...]:
        """The caches that lie in pages, [M, pages + 1, ...] each."""
        scales = () if self.latent_scales is None else (self.latent_scales,)
        return (self.latents, self.pooled, *scales)

    @property
    def paged_bytes(self) -> int:
        """Bytes of all pages, the null page among them."""
        return sum(cache.nbytes for cache in self.paged)

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        fixed = (self.tail, self.memory, self.window, self.current, self.page_table)
        return self.paged_bytes + sum(tensor.nbytes for tensor in fixed)
