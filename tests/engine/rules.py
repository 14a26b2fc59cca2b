"""What the tests of a request's rules share: a tokenizer, replies both ways, a reference, a grammar."""

from dataclasses import replace

import torch

from tests.engine.hash_network import VOCAB, HashNetwork, logits_after
from tests.engine.serving import (
    SAMPLED,
    SMALL,
    assert_clean,
    engine_of,
    prompt_of,
    request_of,
    serve,
)


class Letters:
    """A tokenizer whose token t is the letter chr(97 + t % 26), and a lower half of a character for token
    60."""

    def token_bytes(self, token: int) -> bytes:
        return b"\xc3" if token == 60 else b"\xa9" if token == 59 else bytes([97 + token % 26])


def both_ways(request, **changes):
    """The outcome with guesses, beside other requests; checked against the one without, alone."""
    others = [request_of(f"o{index}", prompt_of(30 + index, 50), sampling=SAMPLED) for index in range(2)]
    many = engine_of(HashNetwork(), replace(SMALL, drafts=4), pieces=Letters(), **changes)
    outcome = serve(many, [others[0], request, others[1]])[1]
    alone = engine_of(HashNetwork(), replace(SMALL, drafts=0, copy_drafts=0), pieces=Letters(), **changes)
    (plain,) = serve(alone, [request])
    assert outcome.ids == plain.ids
    assert outcome.text == plain.text
    assert outcome.reason == plain.reason
    assert [entry for event in outcome.tokens for entry in event.logprobs] == [
        entry for event in plain.tokens for entry in event.logprobs
    ]
    assert outcome.prompt == plain.prompt
    assert_clean(many)
    return outcome


def reference_reply(request, adjust):
    """The reply drawn token by token from adjusted logits."""
    from intarsia.engine.sampling import draw

    reply = []
    while len(reply) < request.max_tokens:
        logits = adjust(logits_after(request.tokens, tuple(reply)).clone(), reply)
        position = torch.tensor([len(request.tokens) + len(reply)])
        reply.append(int(draw(logits[None], position, request.sampling)))
    return reply


OPEN, CLOSE = 58, 57
CLOSING = (10, CLOSE, 11, 11)


class Rising:
    """A grammar: every token is larger than the one before, and the reply ends at 40 or above."""

    def __init__(self, most: int = VOCAB) -> None:
        self.taken: list[int] = []
        self.most = most
        self.fills = 0

    def fill(self, words):
        self.fills += 1
        words.zero_()
        low = self.taken[-1] + 1 if self.taken else 0
        for token in range(low, self.most):
            bit = 1 << token % 32
            words[token // 32] |= bit if bit < 1 << 31 else bit - (1 << 32)

    def accept(self, token):
        if token >= self.most or (self.taken and token <= self.taken[-1]):
            return False
        self.taken.append(token)
        return True

    def rollback(self, count):
        del self.taken[len(self.taken) - count :]

    @property
    def finished(self):
        return bool(self.taken) and self.taken[-1] >= 40
