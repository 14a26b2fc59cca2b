"""An engine without a network: replies follow from the prompt's last user turn.

The turn is either plain text, which is said back, or a JSON object of instructions:
    {"say": text, "think": text, "delay": seconds a token, "fail": after so many tokens, "stall": seconds}
Everything else is as in the real engine: one thread, events in order, stop strings, limits, grammars, usage.
"""

import json
import threading
import time
from dataclasses import dataclass, field

import torch

from intarsia.engine.errors import EngineClosedError, QueueFullError, RequestError, TooLongError
from intarsia.engine.events import (
    EngineStats,
    Finished,
    Handle,
    PromptLogprobs,
    TokenLogprob,
    Tokens,
    Usage,
)

GRID = 64
# What a grammar is offered when the script does not fit it: ends first, then what closes something.
PREFERRED = '"}],:{[0123456789tfn'


@dataclass(eq=False)
class Lane:
    handle: Handle
    script: list
    order: dict
    cached: int
    reason: str
    queued: float
    written: list = field(default_factory=list)
    text: object = None
    next_at: float = 0.0
    started: float = 0.0


class FakeEngine:
    def __init__(self, assets, vocab_size, *, window=4096, streams=4, queue=8):
        self.window = window
        self._assets = assets
        self._tokenizer = assets.tokenizer
        self._vocab_size = vocab_size
        self._streams = streams
        self._queue = queue
        self._seen = []
        self._waiting, self._lanes = [], []
        self._totals = {"prompt": 0, "cached": 0, "completion": 0, "steps": 0}
        self._finished = {}
        self._step_began, self._step_ids = 0.0, ()
        self._condition = threading.Condition()
        self._closed = self._stop = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def alive(self):
        return not self._closed

    def submit(self, request, on_event=None):
        if max(request.tokens) >= self._vocab_size:
            raise RequestError(
                "prompt", found=f"id {max(request.tokens)}", expected="an id of the vocabulary"
            )
        wanted = len(request.tokens) + (1 if request.max_tokens is None else request.max_tokens)
        if wanted > self.window:
            raise TooLongError("prompt", found=f"{wanted} tokens", expected=f"at most {self.window}")
        with self._condition:
            if self._closed:
                raise EngineClosedError("engine", found="a request", expected="none while it ends")
            if len(self._waiting) >= self._queue:
                raise QueueFullError(len(self._waiting), 5)
            handle = Handle(request, on_event)
            handle._wake = self._wake
            self._waiting.append((handle, time.monotonic()))
            self._condition.notify()
        return handle

    def stats(self):
        began = self._step_began
        return EngineStats(
            running=len(self._lanes),
            waiting=len(self._waiting),
            streams=self._streams,
            window=self.window,
            pages=64,
            pages_free=64 - len(self._lanes),
            requests_finished=dict(self._finished),
            prompt_tokens=self._totals["prompt"],
            cached_tokens=self._totals["cached"],
            completion_tokens=self._totals["completion"],
            steps=self._totals["steps"],
            drafted=(10, 5),
            accepted=(8, 2),
            waiting_for="a stream" if self._waiting else "",
            step_age_seconds=time.monotonic() - began if began else 0.0,
            step_streams=self._step_ids,
        )

    def close(self, *, drain=True, timeout=None):
        with self._condition:
            self._closed = True
            if not drain:
                for handle in [handle for handle, _ in self._waiting] + [lane.handle for lane in self._lanes]:
                    handle.cancel()
            self._stop = True
            self._condition.notify()
        self._thread.join(timeout)

    def _wake(self):
        with self._condition:
            self._condition.notify()

    def _run(self):
        while True:
            with self._condition:
                while not (self._waiting or self._lanes or self._stop):
                    self._condition.wait()
                if self._stop and not self._waiting and not self._lanes:
                    return
                self._admit()
                lanes = list(self._lanes)
            self._totals["steps"] += 1
            self._step_ids = tuple(lane.handle.request.id for lane in lanes)
            self._step_began = time.monotonic()
            for lane in lanes:
                if self._advance(lane):
                    with self._condition:
                        self._lanes.remove(lane)
            self._step_began, self._step_ids = 0.0, ()
            with self._condition:
                soonest = min((lane.next_at for lane in self._lanes), default=0.0)
                pause = soonest - time.monotonic()
                if pause > 0:
                    self._condition.wait(min(pause, 0.05))

    def _admit(self):
        waiting = []
        for handle, queued in self._waiting:
            if handle.cancelled:
                self._finish_unstarted(handle, queued)
            elif len(self._lanes) < self._streams:
                self._lanes.append(self._lane(handle, queued))
            else:
                waiting.append((handle, queued))
        self._waiting = waiting

    def _finish_unstarted(self, handle, queued):
        self._finished["cancelled"] = self._finished.get("cancelled", 0) + 1
        usage = Usage(prompt_tokens=len(handle.request.tokens), queue_seconds=time.monotonic() - queued)
        handle.deliver(Finished("cancelled", usage))

    def _lane(self, handle, queued):
        request = handle.request
        order = self._order(request.tokens)
        say = order["say"]
        if request.thinking is not None and request.thinking.inside:
            say = order.get("think", "Let me think.") + "</think>" + say
        shared = max((self._common(tokens, request.tokens) for tokens in self._seen), default=0)
        cached = shared // GRID * GRID
        reason = f"{cached} tokens were kept" if cached else "no kept state shares a beginning"
        if request.prompt_logprobs is not None:
            cached, reason = 0, "prompt logprobs need the whole prompt"
        self._seen = [*self._seen[-7:], request.tokens]
        lane = Lane(handle, [*self._tokenizer.encode(say), 0], order, cached, reason, queued)
        lane.text = self._tokenizer.reply(request.stop)
        lane.started = time.monotonic()
        self._totals["prompt"] += len(request.tokens)
        self._totals["cached"] += cached
        if request.prompt_logprobs is not None:
            entries = [None] + [self._logprob(token, request.prompt_logprobs) for token in request.tokens[1:]]
            handle.deliver(PromptLogprobs(tuple(entries)))
        return lane

    def _order(self, tokens):
        tokens = list(tokens)
        user, assistant = self._tokenizer.token("<|user|>"), self._tokenizer.token("<|assistant|>")
        if user in tokens:
            begin = len(tokens) - tokens[::-1].index(user)
            end = tokens.index(assistant, begin) if assistant in tokens[begin:] else len(tokens)
            tokens = tokens[begin:end]
        text = self._tokenizer.decode(tokens).strip()
        try:
            order = json.loads(text)
            return order if isinstance(order, dict) and "say" in order else {"say": text}
        except ValueError:
            return {"say": f"You said: {text}"}

    @staticmethod
    def _common(first, second):
        return next(
            (place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
            min(len(first), len(second) - 1),
        )

    def _advance(self, lane):
        """One token of one lane; True when it is over."""
        handle, request = lane.handle, lane.handle.request
        if handle.cancelled:
            return self._end(lane, "cancelled")
        if time.monotonic() < lane.next_at:
            return False
        lane.next_at = time.monotonic() + lane.order.get("delay", 0.0)
        if "stall" in lane.order and not lane.written:
            time.sleep(lane.order["stall"])
        if len(lane.written) == lane.order.get("fail", -1):
            return self._end(lane, "error", error="the fake engine was told to fail")
        if len(lane.written) == request.max_tokens:
            return self._end(lane, "length")
        try:
            token = self._next(lane)
        except Exception as error:
            return self._end(lane, "error", error=f"{error}")
        lane.written.append(token)
        ends = self._assets.stop_tokens if not request.ignore_eos else frozenset()
        if token in ends or token in request.stop_ids:
            return self._end(lane, "stop", matched=token)
        text = lane.text.push(token)
        logprobs = (self._logprob(token, request.logprobs),) if request.logprobs is not None else ()
        handle.deliver(Tokens((token,), text, logprobs))
        if lane.text.stopped_by is not None:
            return self._end(lane, "stop", matched=lane.text.stopped_by)
        if len(lane.written) == request.max_tokens or len(lane.written) + len(request.tokens) == self.window:
            return self._end(lane, "length")
        return False

    def _next(self, lane):
        place, grammar = len(lane.written), lane.handle.request.grammar
        token = lane.script[place] if place < len(lane.script) else 0
        thinking = lane.handle.request.thinking
        if thinking is not None and thinking.inside and thinking.close_id not in lane.written:
            return token
        if grammar is None:
            return token
        words = torch.zeros(-(-self._vocab_size // 32), dtype=torch.int32)
        grammar.fill(words)
        bits = words.numpy().view("uint8")
        choices = [token, *sorted(self._assets.stop_tokens)]
        choices += [self._tokenizer.encode(letter)[0] for letter in PREFERRED] + list(range(self._vocab_size))
        token = next(one for one in choices if bits[one // 8] >> one % 8 & 1)
        # as a rejected draft would be
        if not grammar.accept(token):
            raise ValueError(f"token {token} is allowed by the mask and refused")
        grammar.rollback(1)
        grammar.accept(token)
        return token

    def _end(self, lane, reason, *, matched=None, error=None):
        rest = lane.text.finish() if lane.text.stopped_by is None else ""
        if rest:
            lane.handle.deliver(Tokens((), rest))
        self._finished[reason] = self._finished.get(reason, 0) + 1
        self._totals["completion"] += len(lane.written)
        usage = Usage(
            prompt_tokens=len(lane.handle.request.tokens),
            cached_tokens=lane.cached,
            cache_reason=lane.reason,
            completion_tokens=len(lane.written),
            drafted=(4, 2) if lane.handle.request.draft else (),
            accepted=(3, 1) if lane.handle.request.draft else (),
            queue_seconds=lane.started - lane.queued,
            decode_seconds=time.monotonic() - lane.started,
        )
        lane.handle.deliver(Finished(reason, usage, error, matched))
        return True

    def _logprob(self, token, count):
        top = tuple(((token + step) % self._vocab_size, -0.5 - step) for step in range(count))
        return TokenLogprob(token, -0.5, 1, top)
