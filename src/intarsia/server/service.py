"""What the HTTP service needs of the model and the engine, gathered in one place."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

from intarsia.core.json import parse_object
from intarsia.engine.events import EngineLike
from intarsia.engine.text.assets import TextAssets
from intarsia.models.glm5_next.configured import ConfigurationRow
from intarsia.models.glm5_next.explain import WeightRow
from intarsia.server.errors import NotFoundError
from intarsia.server.grammar.compiler import GrammarCompiler
from intarsia.server.output.markers import ASSISTANT, THINK, THINK_END
from intarsia.server.settings import ServerSettings

TRANSLATORS = 2


@dataclass(frozen=True)
class ServedModel:
    """The model as clients see it."""

    names: tuple[str, ...]
    """Names that requests may use; the first is told back."""
    text: TextAssets
    tokenizer_json: str
    vocab_size: int
    root: str = ""
    """Where it was loaded from, as it was asked for."""
    created: int = field(default_factory=lambda: int(time.time()))
    weights: Sequence[WeightRow] = ()
    """How every module is stored and runs."""
    configurations: Sequence[ConfigurationRow] = ()
    """What kernels with a choice run with."""
    tuning: str = ""
    """Where those are from, in words."""

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a reply: the checkpoint's, and the mark of a turn, which cannot be inside one."""
        return self.end_ids_of(self.text)

    @staticmethod
    def end_ids_of(text: TextAssets) -> frozenset[int]:
        """The same, of a checkpoint's text part."""
        turn = text.tokenizer.token(ASSISTANT)
        return text.stop_tokens | ({turn} if turn is not None else set())

    @property
    def name(self) -> str:
        """The name told back."""
        return self.names[0]

    @cached_property
    def think(self) -> tuple[int, int] | None:
        """Ids of the marks of a thinking block, None if the model has none."""
        begin, end = self.text.tokenizer.token(THINK), self.text.tokenizer.token(THINK_END)
        return None if begin is None or end is None else (begin, end)

    @cached_property
    def controls(self) -> Mapping[int, str]:
        """What added tokens are called: those without bytes still need a name in lists of tokens."""
        added = parse_object(self.tokenizer_json.encode(), "tokenizer.json").get("added_tokens", [])
        return {entry["id"]: entry["content"] for entry in added}

    def token_text(self, token: int) -> tuple[str, bytes]:
        """A token by its text, and its bytes; the name of a control token stands for both."""
        data = self.text.tokenizer.token_bytes(token)
        if data:
            return data.decode(errors="replace"), data
        name = self.controls.get(token, f"<token {token}>")
        return name, name.encode()


class Service:
    """One model behind one engine, with what turns requests into tokens."""

    def __init__(
        self,
        settings: ServerSettings,
        model: ServedModel,
        engine: EngineLike,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """`grammars` compiles for this model; without one the service makes its own."""
        self.settings = settings
        self.model = model
        self.engine = engine
        self.grammars = grammars or GrammarCompiler(
            model.tokenizer_json, model.vocab_size, sorted(model.end_ids)
        )
        # Parsing, tokenizing and compiling leave the event loop free, two at a time.
        self.translators = ThreadPoolExecutor(TRANSLATORS, thread_name_prefix="translate")
        self.started = time.monotonic()
        self.draining = False
        self.active = 0
        """Requests that were let in and are not answered yet."""

    def check_model(self, name: str | None) -> None:
        """Raise NotFoundError for a name that is not served."""
        if name is not None and name not in self.model.names:
            served = ", ".join(self.model.names)
            raise NotFoundError(
                f"The model '{name[:100]}' is not served; served: {served}.",
                field="model",
                code="model_not_found",
            )

    def close(self) -> None:
        """End what was started here; the engine is its owner's."""
        self.translators.shutdown(wait=False, cancel_futures=True)
        if self.model.text.template is not None:
            self.model.text.template.close()
