"""A reply as it grows: what must come next, where it ends, what is told about it."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from intarsia.engine.errors import GrammarError
from intarsia.engine.events import FinishReason, TokenLogprob, Tokens
from intarsia.engine.lanes.thinking import ThinkingState
from intarsia.engine.requests import Request
from intarsia.engine.text.reply import ReplyText

TextFactory = Callable[[Sequence[str]], ReplyText]
ALL_ALLOWED = -1


class Reply:
    """Takes tokens one by one and knows when to stop. It sees no logits and no schedule."""

    def __init__(
        self, request: Request, *, limit: int, end_ids: Collection[int], text: TextFactory | None
    ) -> None:
        """`limit`: most tokens; `end_ids`: the model's own end tokens; `text`: None to report ids alone."""
        self.tokens: list[int] = []
        self.finish: FinishReason | None = "length" if limit == 0 else None
        self.matched: str | int | None = None
        self.reasoning_tokens = 0
        self._request = request
        self._limit = limit
        self._stop_ids = frozenset(request.stop_ids) | (
            frozenset() if request.ignore_eos else frozenset(end_ids)
        )
        self._new_text = text
        self._text = text(request.stop) if text else None
        self._thinking = ThinkingState.of(request.thinking, request.loop_guard)
        self._grammar = request.grammar
        self._segments: list[_Segment] = []

    @property
    def room(self) -> int:
        """How many more tokens may come."""
        return self._limit - len(self.tokens)

    @property
    def forced(self) -> tuple[int, ...]:
        """What must come next, whatever is drawn."""
        return self._thinking.forced

    def push(self, token: int, logprob: TokenLogprob | None = None) -> None:
        """Append the next token; GrammarError if the grammar does not allow it."""
        thinking = self._thinking
        was_inside, was_forced = thinking.inside, bool(thinking.forced)
        opens = self._may_open and token == self._open_id
        marker = thinking.push(token, self.tokens)
        shown_as_thinking = was_inside or (marker and thinking.inside)
        self.reasoning_tokens += shown_as_thinking
        self.tokens.append(token)
        if self._grammar is not None and not (was_inside or was_forced or opens or token in self._stop_ids):
            self._accept(token)
        self._show(token, logprob, shown_as_thinking, marker)
        if self.finish is None and self.room <= 0:
            self.end("length")

    def end(self, reason: FinishReason, matched: str | int | None = None) -> None:
        """The reply ends here; held text comes out, unless it completes a stop string."""
        self.finish, self.matched = reason, matched
        self._flush()
        if self._text is not None and self._text.stopped_by is not None and matched is None:
            self.finish, self.matched = "stop", self._text.stopped_by

    def events(self) -> list[Tokens]:
        """What was not yet told."""
        segments, self._segments = self._segments, []
        return [segment.event() for segment in segments]

    def look_ahead(self, drafts: Sequence[int], words: int) -> tuple[list[int], Tensor | None]:
        """Drafts as far as the grammar allows them, and the mask int32 [drafts + 1, words] of the rows they
        make.

        Row j is drawn after the first j drafts. Without a grammar the mask is None.
        """
        grammar = self._grammar
        if grammar is None:
            return list(drafts), None
        state, history = self._thinking.copy(), list(self.tokens)
        masks = torch.full((len(drafts) + 1, words), ALL_ALLOWED, dtype=torch.int32)
        accepted = 0
        try:
            for row in range(len(drafts) + 1):
                active = not state.inside and not state.forced
                if active:
                    grammar.fill(masks[row])
                    if row == 0 and self._may_open:
                        _allow(masks[row], self._open_id)
                if row == len(drafts):
                    break
                token = drafts[row]
                if active and (token in self._stop_ids or not grammar.accept(token)):
                    return list(drafts[:row]), masks[: row + 1]
                accepted += active
                state.push(token, history)
                history.append(token)
        finally:
            if accepted:
                grammar.rollback(accepted)
        return list(drafts), masks

    def allowed_after(self, drafts: Sequence[int], words: int) -> Tensor | None:
        """What the grammar allows after these drafts, int32 [words]; None where it says nothing, or not that
        far.

        For guessing: a grammar that fails says nothing here, and fails again where its reply is written.
        """
        try:
            kept, masks = self.look_ahead(drafts, words)
        except Exception:  # the grammar's own failures are of any kind, and told elsewhere
            return None
        return None if masks is None or len(kept) < len(drafts) else masks[-1]

    @property
    def _open_id(self) -> int | None:
        rules = self._request.thinking
        return None if rules is None else rules.open_id

    @property
    def _may_open(self) -> bool:
        """True while the model may begin with a thinking block, which a grammar does not know of."""
        return not self.tokens and not self._thinking.inside and self._open_id is not None

    def _accept(self, token: int) -> None:
        grammar = self._grammar
        if grammar is not None and not grammar.accept(token):
            raise GrammarError("grammar", found=f"token {token}", expected="a token its mask allows")

    def _show(self, token: int, logprob: TokenLogprob | None, thinking: bool, marker: bool) -> None:
        if marker and self._new_text is not None:
            # Text does not flow over a marker: what is held belongs to what came before it.
            self._flush()
            self._text = self._new_text(self._request.stop)
        if not self._segments or not self._segments[-1].takes(thinking, marker):
            self._segments.append(_Segment(thinking, marker))
        segment = self._segments[-1]
        segment.ids.append(token)
        if logprob is not None:
            segment.logprobs.append(logprob)
        if token in self._stop_ids:
            if self._request.include_stop and self._text is not None:
                segment.text += self._text.push(token)
            self.end("stop", token)
            return
        if self._text is not None:
            segment.text += self._text.push(token)
            if self._text.stopped_by is not None:
                segment.text += self._text.stopped_by if self._request.include_stop else ""
                self.end("stop", self._text.stopped_by)
                return
        if self._grammar is not None and not self._thinking.inside and not marker and self._grammar.finished:
            self.end("stop")

    def _flush(self) -> None:
        rest = "" if self._text is None else self._text.finish()
        if rest and not self._segments:
            self._segments.append(_Segment(self._thinking.inside, False))
        if rest:
            self._segments[-1].text += rest


class _Segment:
    """Tokens of one kind that follow each other."""

    def __init__(self, thinking: bool, marker: bool) -> None:
        self.thinking, self.marker = thinking, marker
        self.ids: list[int] = []
        self.text = ""
        self.logprobs: list[TokenLogprob] = []

    def takes(self, thinking: bool, marker: bool) -> bool:
        return self.thinking == thinking and not marker and not self.marker

    def event(self) -> Tokens:
        return Tokens(tuple(self.ids), self.text, tuple(self.logprobs), self.thinking)


def _allow(words: Tensor, token: int | None) -> None:
    if token is not None:
        bit = 1 << token % 32
        words[token // 32] |= bit if bit < 1 << 31 else bit - (1 << 32)
