"""Requests checked against a model and an engine, and made into lanes."""

from collections.abc import Collection, Sequence

import torch

from intarsia.engine.errors import RequestError, TooLongError
from intarsia.engine.events import Handle
from intarsia.engine.lanes.adjust import Adjustment, needs_adjustment
from intarsia.engine.lanes.copying import CopyIndex
from intarsia.engine.lanes.lane import Lane
from intarsia.engine.lanes.reply import Reply
from intarsia.engine.requests import Request
from intarsia.engine.settings import StreamSettings
from intarsia.engine.text.reply import Pieces, ReplyText


class Intake:
    """What a model and an engine can serve."""

    def __init__(
        self,
        settings: StreamSettings,
        *,
        window: int,
        vocab_size: int,
        device: torch.device,
        end_ids: Collection[int],
        pieces: Pieces | None,
    ) -> None:
        """`end_ids` end a reply; `pieces` turn tokens into text, without them replies are ids alone."""
        self.window = window
        self._settings = settings
        self._vocab_size = vocab_size
        self._device = device
        self._end_ids = frozenset(end_ids)
        self._pieces = pieces

    def check(self, request: Request) -> None:
        """Raise RequestError or TooLongError for what cannot be served; `where` names the field."""
        prompt = len(request.tokens)
        if prompt >= self.window:
            raise TooLongError(
                "prompt",
                found=f"{prompt} tokens",
                expected=f"at most {self.window - 1} tokens in a window of {self.window}",
                action="shorten the prompt",
            )
        if request.max_tokens is not None and prompt + request.max_tokens > self.window:
            raise TooLongError(
                "max_tokens",
                found=f"{request.max_tokens} tokens after a prompt of {prompt}",
                expected=f"at most {self.window} tokens of prompt and reply together",
                action=f"ask for at most {self.window - prompt} tokens",
            )
        self._check_ids("prompt", request.tokens)
        self._check_ids("stop_ids", request.stop_ids)
        self._check_ids("logit_bias", list(request.logit_bias))
        if request.thinking is not None:
            self._check_ids("thinking", (request.thinking.close_id, *request.thinking.forced_close))
        if request.stop and self._pieces is None:
            raise RequestError("stop", found="stop strings", expected="an engine that knows the tokenizer")

    def lane(self, handle: Handle, order: int) -> Lane:
        """A lane for a checked request."""
        request = handle.request
        limit = self.window - len(request.tokens)
        if request.max_tokens is not None:
            limit = min(limit, request.max_tokens)
        pieces = self._pieces
        text = None if pieces is None else lambda stops: ReplyText(pieces, stops)
        lane = Lane.of(handle, order, Reply(request, limit=limit, end_ids=self._end_ids, text=text))
        if request.draft and self._settings.copy_drafts:
            lane.copies = CopyIndex(lane.prompt)
        if needs_adjustment(request):
            lane.adjustment = Adjustment(request, self._vocab_size, self._device)
        return lane

    def _check_ids(self, field: str, ids: Sequence[int]) -> None:
        for place, token in enumerate(ids):
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self._vocab_size:
                raise RequestError(
                    field,
                    found=f"{token!r} at place {place}",
                    expected=f"a token id from 0 to {self._vocab_size - 1}",
                )
