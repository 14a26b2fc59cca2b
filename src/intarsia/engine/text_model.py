"""A network together with its checkpoint's tokenizer and chat template: text in, text out."""

from collections.abc import Callable, Sequence
from typing import Any

from intarsia.core.config import EngineSettings, GenerationSettings
from intarsia.core.errors import UsageError
from intarsia.engine.drafting import AdaptiveDepth, MtpDrafter, NoDrafts
from intarsia.engine.generate import Generation
from intarsia.engine.protocols import Drafter, Runner
from intarsia.engine.stream import check_fits
from intarsia.engine.text import TextAssets
from intarsia.engine.text.template import Message

MakeRunner = Callable[[int, int], Runner]
"""(window, most drafts a step) -> a runner of one stream."""


class TextModel:
    """Writes replies, one at a time. The next reply reuses the stream of the last one."""

    def __init__(
        self,
        assets: TextAssets,
        make_runner: MakeRunner,
        *,
        model_window: int,
        can_draft: bool,
        settings: EngineSettings,
    ) -> None:
        self.assets = assets
        self.settings = settings
        if settings.window is not None and settings.window > model_window:
            expected = f"at most the model's own {model_window}"
            raise UsageError("window", found=str(settings.window), expected=expected)
        self.window = settings.window or model_window
        self.drafts = settings.drafts if can_draft else 0
        self._make_runner = make_runner
        self._runner: Runner | None = None

    @property
    def defaults(self) -> GenerationSettings:
        """Sampling as the checkpoint's makers set it, with this package's limits for the rest."""
        sampling = self.assets.defaults
        return GenerationSettings(
            temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p
        )

    def generate(self, prompt: str | Sequence[int], settings: GenerationSettings | None = None) -> Generation:
        """Continue a text, or token ids, as they stand; the reply is drawn while it is iterated.

        A generation must be finished or given up before the next one begins.
        """
        settings = settings or self.defaults
        tokens = self.assets.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        check_fits(len(tokens), self.window)
        runner = self._stream(min(len(tokens) + settings.max_tokens, self.window))
        drafter: Drafter = MtpDrafter(runner) if self.drafts else NoDrafts()
        return Generation(
            runner,
            tokens,
            settings,
            stop_tokens=self.assets.stop_tokens,
            text=self.assets.tokenizer.reply(settings.stop),
            drafter=drafter,
            depth=AdaptiveDepth(self.drafts) if self.drafts else None,
        )

    def chat(
        self, messages: Sequence[Message], settings: GenerationSettings | None = None, **options: Any
    ) -> Generation:
        """Answer a conversation, rendered by the checkpoint's own template with `options`."""
        return self.generate(self.render(messages, **options), settings)

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        """The prompt text of a conversation."""
        return self.assets.chat_template().render(messages, **options)

    def _stream(self, tokens: int) -> Runner:
        """A stream that can hold this many tokens: the present one if it can, else a wider one."""
        if self._runner is None or self._runner.window < tokens:
            self._runner = None  # its caches are dead before the new ones are made
            width = 512
            while width < tokens:
                width *= 2
            self._runner = self._make_runner(min(width, self.window), self.drafts)
        return self._runner
