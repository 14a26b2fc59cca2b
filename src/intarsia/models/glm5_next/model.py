"""GLM-5.3-Flash: the text network and its MTP layer over rows of several streams."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from intarsia.core.config import CacheType, ScaleForm
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.split import SplitRule, shares, split_rule
from intarsia.groups.group import SINGLE, Group
from intarsia.kernels import hyper_connection as hyper
from intarsia.kernels.embedding import embed, join_norms
from intarsia.kernels.linear import linear
from intarsia.kernels.norm import add_norm, rms_norm
from intarsia.kernels.rows import Piece, Rows
from intarsia.kernels.weights import Weight
from intarsia.models.errors import StateError
from intarsia.models.glm5_next.attention import kda, mla
from intarsia.models.glm5_next.feed_forward import feed_forward
from intarsia.models.glm5_next.state import DEFAULT_PAGE, State, StateSettings
from intarsia.models.glm5_next.weights import (
    BlockWeights,
    HyperWeights,
    KdaWeights,
    LayerWeights,
    network_weights,
    prepare_experts,
)

PROMPT_ROWS = 1024  # rows of a prompt that run at once; a multiple of the 64-token grid


class Glm5NextModel:
    """The network, weights in stored form, activations in `dtype`; what formulas need wide is float32.

    On several ranks the weights are this rank's shares. All ranks run the same rows; a layer exchanges its
    partial sums twice, after attention and after the feed-forward half.
    """

    def __init__(
        self,
        config: Glm5NextConfig,
        weights: Mapping[str, Weight],
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        group: Group = SINGLE,
        latents: CacheType = "auto",
        expert_scales: ScaleForm = "expanded",
    ) -> None:
        """Take exactly the weights that families.glm5_next.runtime names; ModelWeightsError otherwise.

        `latents` says how its caches store latents: in `dtype`, bfloat16, or FP8. `expert_scales`: resident
        for block scales of experts in their compressed form, KernelError where no kernel reads that.
        """
        self.group = group
        self.vocabulary = shares(split_rule(config, "lm_head"), group.ranks)
        self.linear_heads = len(
            shares(SplitRule("head", 0, 1, config.linear_num_heads), group.ranks)[group.rank]
        )
        self.config = config
        self.dtype = dtype
        self.latents = latents
        self.device = torch.device(device)
        self.weights = prepare_experts(
            network_weights(weights, config), dtype, device, resident=expert_scales == "resident"
        )
        self._cache_index = {layer: i for i, layer in enumerate(config.kda_layers)}
        self._cache_index |= {layer: i for i, layer in enumerate(config.mla_layers)}

    def new_state(self, settings: StateSettings) -> State:
        """Empty caches for this network."""
        return State(
            self.config,
            settings,
            dtype=self.dtype,
            device=self.device,
            linear_heads=self.linear_heads,
            latents=self.latents,
        )

    def hidden(self, rows: Rows, state: State, watch: Callable[[int, Tensor], None] | None = None) -> Tensor:
        """Run rows through all main layers; the final-normed hidden rows [R, D].

        `watch(layer, streams)` sees the residual streams [R, hc_mult, D] that each layer leaves.
        """
        group, count = self.group, len(rows.tokens)
        each = group.divided(count) if watch is None else None
        x = embed(rows.tokens, self.weights.embedding, self.dtype)
        if each is not None:
            x = x[group.rank * each : (group.rank + 1) * each]
        streams = x.unsqueeze(1).expand(-1, self.config.hc_mult, -1)
        pending: hyper.Pending | None = None
        for index, layer in enumerate(self.weights.layers):
            block = layer.block
            streams, x, mix = self._site(streams, pending, layer.attention_mix, block.attention_norm)
            if watch is not None and index:
                watch(index - 1, streams)
            if each is not None:
                y = self._attention(index, block, group.gather_rows(x, each, count), state, rows)
                streams, pending = self._second_half_divided(layer, streams, y, mix, rows, each)
                continue
            y = self._attention(index, block, x, state, rows)
            streams, pending = self._second_half(layer, streams, y, mix, rows)
        if pending is None:
            raise StateError("layers", found="none", expected="at least one")
        streams, hidden = hyper.finish(streams, pending, self.weights.norm, self.config.rms_norm_eps)
        if watch is not None:
            watch(len(self.weights.layers) - 1, streams)
        return hidden if each is None else group.gather_rows(hidden, each, count)

    def head(self, hidden: Tensor, rows: int | None = None) -> Tensor:
        """Logits float32 [R, V] of final-normed rows [R, D]; R is a multiple of 16. Gathers ranks' shards.

        With `rows` only those of the first rows.
        """
        shard = self.head_shard(hidden)
        shard = shard if rows is None else shard[:rows]
        return self.group.gather_columns(shard, [len(part) for part in self.vocabulary])

    def head_shard(self, hidden: Tensor) -> Tensor:
        """Logits float32 [R, n] of this rank's part of the vocabulary, `vocabulary[rank]`."""
        return linear(hidden, self.weights.head, out_dtype=torch.float32)

    def mtp_hidden(
        self, rows: Rows, hidden: Tensor, state: State, selected: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run rows through the MTP layer: its normed hidden rows [R, D] and the positions its attention
        selected.

        Row i carries the token at position i + 1 in `rows.tokens`, its own position i in `rows.positions`,
        and in `hidden` [R, D] the final-normed hidden of position i: of the main model, or of the previous
        draft. The embedding counts as zero at position 0. `head` turns the result into logits of the token
        at i + 2.
        """
        w, eps = self.weights.mtp, self.config.rms_norm_eps
        if w is None:
            raise StateError(
                "mtp", found="a checkpoint without an MTP layer", action="run without MTP drafts"
            )
        norms = (w.enorm, w.hnorm)
        joined = join_norms(rows.tokens, rows.positions, self.weights.embedding, hidden, norms, eps)
        x = linear(joined, w.eh_proj, used=rows.starts[-1:])
        cache = state.mla(len(self.config.mla_layers))
        attention = w.block.attention
        if isinstance(attention, KdaWeights):
            raise StateError("mtp", found="linear attention", expected="latent attention in the MTP layer")
        y, selected = mla(
            rms_norm(x, w.block.attention_norm, eps), attention, self.config, cache, rows, selected
        )
        group, count = self.group, len(x)
        each = group.divided(count)
        if each is not None:  # every rank keeps the residual of its own rows
            x = x[group.rank * each : (group.rank + 1) * each]
            x, normed = add_norm(x, group.sum_own(y, each), w.block.mlp_norm, eps)
            y = feed_forward(group.gather_rows(normed, each, count), w.block.mlp, self.config, rows)
            own = add_norm(x, group.sum_own(y, each), w.norm, eps)[1]
            return group.gather_rows(own, each, count), selected
        sent = self._sent(rows)
        x, normed = add_norm(x, group.sum_in_rank_order(y, sent), w.block.mlp_norm, eps)
        y = feed_forward(normed, w.block.mlp, self.config, rows)
        return add_norm(x, group.sum_in_rank_order(y, sent), w.norm, eps)[1], selected

    def logits(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """Logits float32 [T, V] of every position of one sequence, run as a prompt without any kept state."""
        ids = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        self.check_tokens(ids)
        pages = -(-max(len(ids), 1) // DEFAULT_PAGE)
        state = self.new_state(StateSettings(streams=1, window=pages * DEFAULT_PAGE, pages=pages))
        state.map_pages(0, range(pages))
        parts = []
        for begin in range(0, len(ids), PROMPT_ROWS):
            piece = Piece(stream=0, position=begin, tokens=ids[begin : begin + PROMPT_ROWS], recurrent=False)
            hidden = self.hidden(state.rows([piece]), state)
            parts.append(self.head(hidden, len(piece.tokens)))
        return torch.cat(parts) if parts else torch.empty(0, self.config.vocab_size)

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise StateError for the first id outside the vocabulary."""
        for position, token in enumerate(tokens):
            if not 0 <= token < self.config.vocab_size:
                raise StateError(
                    f"token at position {position}",
                    found=str(token),
                    expected=f"an id from 0 to {self.config.vocab_size - 1}",
                )

    def _site(
        self, streams: Tensor, pending: hyper.Pending | None, mix: HyperWeights, norm: Tensor
    ) -> tuple[Tensor, Tensor, hyper.HyperMix]:
        rule = hyper.Rule(
            norm_eps=self.config.rms_norm_eps,
            eps=self.config.hc_eps,
            iterations=self.config.hc_sinkhorn_iters,
        )
        return hyper.site(streams, pending, hyper.Site(mix.fn, mix.base, mix.scale, norm), rule)

    def _sent(self, rows: Rows) -> int | None:
        """How many rows' sums travel: where the host sends them, not those that only pad."""
        return rows.real if self.group.host_ranks > 1 else None

    def _second_half(
        self, layer: LayerWeights, streams: Tensor, partial: Tensor, mix: hyper.HyperMix, rows: Rows
    ) -> tuple[Tensor, hyper.Pending]:
        """From attention's partial sums to what the feed-forward half leaves pending."""
        parts = self.group.cut(len(partial))
        if len(parts) > 1:
            return self._second_half_in_parts(layer, streams, partial, mix, rows, parts)
        sent = self._sent(rows)
        pending = self._pending(partial, mix, sent)
        streams, x, mix = self._site(streams, pending, layer.mlp_mix, layer.block.mlp_norm)
        y = feed_forward(x, layer.block.mlp, self.config, rows)
        return streams, self._pending(y, mix, sent)

    def _pending(self, partial: Tensor, mix: hyper.HyperMix, sent: int | None) -> hyper.Pending:
        """A block's partial sums as what the streams get next."""
        y, sums = self.group.sum_where_read(partial, sent)
        return hyper.Pending(y, mix, sums)

    def _second_half_divided(
        self,
        layer: LayerWeights,
        streams: Tensor,
        partial: Tensor,
        mix: hyper.HyperMix,
        rows: Rows,
        each: int,
    ) -> tuple[Tensor, hyper.Pending]:
        """The same bits where every rank keeps the streams of its own rows: what mixes them takes a row by
        itself, and sums travel to one rank instead of all."""
        pending = hyper.Pending(self.group.sum_own(partial, each), mix)
        streams, x, mix = self._site(streams, pending, layer.mlp_mix, layer.block.mlp_norm)
        y = feed_forward(self.group.gather_rows(x, each, len(partial)), layer.block.mlp, self.config, rows)
        return streams, hyper.Pending(self.group.sum_own(y, each), mix)

    def _second_half_in_parts(
        self,
        layer: LayerWeights,
        streams: Tensor,
        partial: Tensor,
        mix: hyper.HyperMix,
        rows: Rows,
        parts: Sequence[slice],
    ) -> tuple[Tensor, hyper.Pending]:
        """The same bits: rows are independent here, so the sums of some travel while others are computed."""
        cut = [rows.part(part) for part in parts]
        sums = [
            self.group.begin_sum(partial[part], self._sent(own)) for part, own in zip(parts, cut, strict=True)
        ]
        states, waiting, mixes = [], [], []
        for part, some, attended in zip(parts, cut, sums, strict=True):
            pending = hyper.Pending(attended(), mix.part(part))
            state, x, own = self._site(streams[part], pending, layer.mlp_mix, layer.block.mlp_norm)
            y = feed_forward(x, layer.block.mlp, self.config, some)
            waiting.append(self.group.begin_sum(y, self._sent(some)))
            states.append(state)
            mixes.append(own)
        y = torch.cat([wait() for wait in waiting])
        return torch.cat(states), hyper.Pending(y, hyper.HyperMix.joined(mixes))

    def _attention(self, index: int, block: BlockWeights, x: Tensor, state: State, rows: Rows) -> Tensor:
        cache_index = self._cache_index[index]
        if isinstance(block.attention, KdaWeights):
            return kda(x, block.attention, self.config, state.kda(cache_index), rows)
        return mla(x, block.attention, self.config, state.mla(cache_index), rows)[0]
