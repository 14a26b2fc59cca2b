"""Drafted equals plain, token for token, with exactly the expected steps; ends, limits and refusals."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from intarsia.core.config import GenerationSettings
from intarsia.core.errors import UsageError
from intarsia.engine.drafting import AdaptiveDepth, FixedDepth, MtpDrafter, NoDrafts
from intarsia.engine.errors import DraftError, LogitsError, StepOrderError, WindowError
from intarsia.engine.generate import Generation
from intarsia.engine.stream import GenerationResult
from tests.engine.scripted import ScriptedDrafter, always, every_third, never

from .fakes import VOCAB, HashRunner, logits_of

GREEDY = GenerationSettings(max_tokens=24)
SEEDED = GenerationSettings(max_tokens=24, temperature=0.9, top_k=30, top_p=0.95, seed=5)
STOP_TOKENS = (3,)
PROMPTS = [[(7 * i + j * j + i * j) % VOCAB for j in range(1 + i % 9)] for i in range(50)]


def generate(prompt, settings, *, window=512, **options) -> tuple[GenerationResult, HashRunner]:
    runner = HashRunner(window)
    result = Generation(runner, prompt, settings, stop_tokens=STOP_TOKENS, **options).result
    return result, runner


@cache
def plain_run(index: int, settings: GenerationSettings) -> GenerationResult:
    return generate(PROMPTS[index], settings)[0]


def brute_force(prompt, settings):
    """The reply by the plainest loop: logits of the whole prefix, one draw a token."""
    from intarsia.engine.sampling import draw

    tokens = list(prompt)
    while len(tokens) < len(prompt) + settings.max_tokens:
        tokens.append(int(draw(logits_of(tokens)[None], torch.tensor([len(tokens)]), settings)))
        if tokens[-1] in STOP_TOKENS:
            break
    return tuple(tokens[len(prompt) :])


def expected_steps(reply: int, limit: int, depth: int, mistake) -> tuple[int, list[int], list[int]]:
    """Steps, and guesses made and landed by place, for a reply of a known length and a scripted drafter."""
    done, steps, drafted, accepted = 1, 0, [0] * depth, [0] * depth
    while done < reply:
        count = min(depth, limit - done - 1, reply - done)
        wrong = [index for index in range(count) if mistake(steps, index)]
        landed = min(wrong[0] if wrong else count, reply - done)
        for place in range(count):
            drafted[place] += 1
            accepted[place] += place < landed
        done = min(reply, done + landed + 1)
        steps += 1
    return steps, drafted, accepted


def without_zeros(counts):
    return [count for count in counts if count]


@pytest.mark.parametrize("settings", [GREEDY, SEEDED], ids=["greedy", "seeded"])
class TestDraftedEqualsPlain:
    def test_plain_equals_brute_force(self, settings):
        lengths = set()
        for index, prompt in enumerate(PROMPTS):
            result, runner = generate(prompt, settings)
            assert result == plain_run(index, settings)
            assert result.tokens == brute_force(prompt, settings)
            assert result.steps == len(result.tokens) - 1
            assert result.drafted == result.accepted == ()
            assert runner.committed == [*prompt, *result.tokens[:-1]]
            lengths.add((len(result.tokens), result.finish_reason))
        assert (24, "length") in lengths
        assert any(reason == "stop" for _, reason in lengths)

    @pytest.mark.parametrize("mistake", [never, always, every_third])
    @pytest.mark.parametrize("depth", [1, 4])
    def test_scripted(self, settings, mistake, depth):
        for index, prompt in enumerate(PROMPTS):
            plain = plain_run(index, settings)
            drafter = ScriptedDrafter([*prompt, *plain.tokens], VOCAB, mistake)
            drafted, runner = generate(prompt, settings, drafter=drafter, depth=FixedDepth(depth))
            assert drafted.tokens == plain.tokens
            assert drafted.finish_reason == plain.finish_reason
            assert runner.committed == [*prompt, *plain.tokens[:-1]]
            steps, made, landed = expected_steps(len(plain.tokens), 24, depth, mistake)
            assert drafted.steps == steps
            assert without_zeros(drafted.drafted) == without_zeros(made)
            assert without_zeros(drafted.accepted) == without_zeros(landed)
            if mistake is always:
                assert sum(drafted.accepted) == 0
            if mistake is never:
                assert drafted.steps == -(-(len(plain.tokens) - 1) // (depth + 1))
                assert drafted.drafted == drafted.accepted

    @pytest.mark.parametrize("depth", [FixedDepth(3), AdaptiveDepth(5)])
    def test_mtp(self, settings, depth):
        drafts = landed = 0
        for index, prompt in enumerate(PROMPTS):
            plain = plain_run(index, settings)
            runner = HashRunner()
            reply = Generation(
                runner, prompt, settings, stop_tokens=STOP_TOKENS, drafter=MtpDrafter(runner), depth=depth
            ).result
            assert reply.tokens == plain.tokens
            assert runner.committed == [*prompt, *plain.tokens[:-1]]
            # the first token comes from the prompt, each step gives one token and those guessed right
            # (one fewer when a guess ended the reply: it is the step's last token)
            ended_by_a_guess = len(plain.tokens) - 1 - reply.steps - sum(reply.accepted)
            assert ended_by_a_guess in (0, -1)
            drafts, landed = drafts + sum(reply.drafted), landed + sum(reply.accepted)
        assert 0 < landed < drafts

    def test_window_end(self, settings):
        """The reply may fill the window; guesses never reach past it."""
        settings = replace(settings, max_tokens=500, ignore_eos=True)
        for window in range(10, 17):
            plain, runner = generate(PROMPTS[7], settings, window=window)
            assert len(PROMPTS[7]) + len(plain.tokens) == window
            assert plain.finish_reason == "length"
            for mistake in (never, always, every_third):
                drafter = ScriptedDrafter([*PROMPTS[7], *plain.tokens, 1, 2, 3, 4, 5], VOCAB, mistake)
                drafted, runner = generate(
                    PROMPTS[7], settings, window=window, drafter=drafter, depth=FixedDepth(4)
                )
                assert drafted.tokens == plain.tokens
                assert len(runner.committed) == window - 1

    def test_max_tokens(self, settings):
        long, _ = generate(PROMPTS[3], replace(settings, ignore_eos=True))
        for count in (1, 2, 3, 7):
            short_settings = replace(settings, max_tokens=count, ignore_eos=True)
            drafter = ScriptedDrafter([*PROMPTS[3], *long.tokens], VOCAB, never)
            short, runner = generate(PROMPTS[3], short_settings, drafter=drafter, depth=FixedDepth(3))
            assert short.tokens == long.tokens[:count]
            assert sum(runner.widths) <= count - 1 or count == 1


def test_deltas_are_the_result():
    runner = HashRunner()
    generation = Generation(runner, PROMPTS[5], SEEDED, drafter=MtpDrafter(runner), depth=FixedDepth(3))
    deltas = list(generation)
    result = generation.result
    assert sum((delta.tokens for delta in deltas), ()) == result.tokens
    assert len(deltas) == result.steps + 1
    assert result.timing.prompt >= 0
    assert result == replace(result, timing=replace(result.timing, prompt=99.0))


def test_leaving_early_keeps_the_stream_whole():
    runner = HashRunner()
    generation = Generation(runner, PROMPTS[5], GREEDY, drafter=MtpDrafter(runner), depth=FixedDepth(3))
    tokens = [token for _, delta in zip(range(3), generation, strict=False) for token in delta.tokens]
    assert runner.committed == [*PROMPTS[5], *tokens[:-1]]


def test_a_seed_follows_from_the_prompt():
    unseeded = replace(SEEDED, seed=None)
    first, _ = generate(PROMPTS[4], unseeded)
    assert first == generate(PROMPTS[4], unseeded)[0]
    others = {generate(PROMPTS[4], replace(SEEDED, seed=seed))[0].tokens for seed in range(5)}
    assert len(others) == 5


def test_ignore_eos_goes_on():
    stopped = next(p for p in PROMPTS if generate(p, GREEDY)[0].finish_reason == "stop")
    short, _ = generate(stopped, GREEDY)
    long, _ = generate(stopped, replace(GREEDY, ignore_eos=True))
    assert short.stopped_by == 3
    assert short.tokens[-1] == 3
    assert long.tokens[: len(short.tokens)] == short.tokens
    assert len(long.tokens) == 24


class TestRefusals:
    @pytest.mark.parametrize("prompt", [[], [VOCAB], [-1], [True], [1.0]])
    def test_bad_prompts(self, prompt):
        with pytest.raises(UsageError, match="prompt"):
            generate(prompt, GREEDY)

    def test_a_prompt_that_fills_the_window(self):
        with pytest.raises(WindowError, match="at most 7 in a window of 8"):
            generate([1] * 8, GREEDY, window=8)
        assert generate([1] * 7, GREEDY, window=8)[0].tokens == brute_force(
            [1] * 7, replace(GREEDY, max_tokens=1)
        )

    def test_stop_strings_need_a_tokenizer(self):
        with pytest.raises(UsageError, match="stop"):
            generate([1], replace(GREEDY, stop=("x",)))

    @pytest.mark.parametrize(
        ("drafts", "words"), [([1] * 9, "at most 3"), ([VOCAB], "token 61"), ([-1], "token -1")]
    )
    def test_bad_drafts(self, drafts, words):
        class Bad(NoDrafts):
            def propose(self, tokens, count, pick):
                return drafts

        with pytest.raises(DraftError, match=words):
            generate([1], GREEDY, drafter=Bad(), depth=FixedDepth(3))

    def test_broken_logits_name_the_position(self):
        class Broken(HashRunner):
            def verify(self, tokens):
                logits = super().verify(tokens)
                logits[0, 5] = float("nan")
                return logits

        generation = Generation(Broken(), [1, 2, 3], GREEDY)
        next(generation)
        with pytest.raises(LogitsError, match="position 4"):
            next(generation)
        assert list(generation) == []
        with pytest.raises(StepOrderError):
            _ = generation.result

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("max_tokens", 0), ("max_tokens", True), ("stop", "text"), ("stop", ("",)), ("stop", (1,)),
            ("stop", ("a",) * 17), ("stop", ("a" * 1001,)), ("ignore_eos", 1), ("top_k", -1),
        ],
    )  # fmt: skip
    def test_bad_settings_name_the_field(self, field, value):
        with pytest.raises(UsageError) as caught:
            GenerationSettings(**{field: value})
        assert caught.value.where == field


class TestDepth:
    @staticmethod
    def follow(depth, steps, landing):
        """Depths chosen over some steps in which the first `landing` guesses land."""
        seen = []
        for _ in range(steps):
            seen.append(depth.depth())
            depth.record(seen[-1], min(landing, seen[-1]))
        return seen

    def test_stays_deep_while_guesses_land(self):
        assert self.follow(AdaptiveDepth(4), 100, 4) == [4] * 100

    def test_gives_up_places_that_miss_and_tries_them_again(self):
        depth = AdaptiveDepth(4)
        seen = self.follow(depth, 300, 1)
        assert seen[:3] == [4, 4, 1]
        assert seen.count(1) > 280
        assert 2 in seen[60:80]  # a trial of the second place
        assert set(seen[2:]) == {1, 2}

    def test_finds_a_better_time(self):
        depth = AdaptiveDepth(3)
        self.follow(depth, 200, 0)
        seen = self.follow(depth, 200, 3)
        assert seen[0] == 1
        assert seen[-1] == 3

    def test_never_below_one(self):
        assert set(self.follow(AdaptiveDepth(1), 50, 0)) == {1}
        assert min(self.follow(AdaptiveDepth(5), 200, 0)) == 1

    def test_place_by_place(self):
        """The first place lands always, the second in one of five steps: one guess a step is right."""
        depth = AdaptiveDepth(3)
        seen = []
        for step in range(200):
            seen.append(depth.depth())
            depth.record(seen[-1], min(seen[-1], 2 if step % 5 == 0 else 1))
        assert seen.count(1) > 150

    def test_steps_without_guesses_do_not_count(self):
        depth = AdaptiveDepth(3)
        for _ in range(20):
            depth.record(0, 0)
        assert depth.depth() == 3

    @pytest.mark.parametrize("make", [lambda: AdaptiveDepth(0), lambda: FixedDepth(-1)])
    def test_bad_depths(self, make):
        with pytest.raises(UsageError, match="drafts"):
            make()
