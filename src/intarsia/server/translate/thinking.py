"""How much the model thinks: effort, template options, budget."""

from typing import get_args

from intarsia.engine.requests import Thinking
from intarsia.server.errors import InvalidRequestError
from intarsia.server.service import ServedModel
from intarsia.server.wire.asked import ChatRequest, Effort, TokenizeRequest

EFFORTS: tuple[str, ...] = get_args(Effort)
# GLM knows three efforts; the others are the nearest of them.
_NEAREST = {"minimal": "low", "medium": "high", "xhigh": "max"}
_SWITCHES = ("enable_thinking", "thinking", "clear_thinking")


def template_options(asked: ChatRequest | TokenizeRequest) -> dict[str, object]:
    """The template's variables: `chat_template_kwargs` from an allow-list, and the reasoning effort."""
    options: dict[str, object] = {}
    for name, value in (asked.chat_template_kwargs or {}).items():
        field = f"chat_template_kwargs.{name[:80]}"
        if name == "reasoning_effort":
            if value not in EFFORTS:
                raise InvalidRequestError(f"Expected one of {', '.join(EFFORTS)}.", field=field)
        elif name not in _SWITCHES:
            allowed = ", ".join((*_SWITCHES, "reasoning_effort"))
            raise InvalidRequestError(f"The template option is not one of {allowed}.", field=field)
        elif not isinstance(value, bool):
            raise InvalidRequestError("Expected true or false.", field=field)
        options[name] = value
    if asked.reasoning_effort is not None:
        if options.get("reasoning_effort", asked.reasoning_effort) != asked.reasoning_effort:
            raise InvalidRequestError("Two different efforts are asked for.", field="reasoning_effort")
        options["reasoning_effort"] = asked.reasoning_effort
    return _settled(options)


def _settled(options: dict[str, object]) -> dict[str, object]:
    """One switch for thinking, and an effort the model knows."""
    switches = {options.pop(name) for name in ("enable_thinking", "thinking") if name in options}
    effort = options.pop("reasoning_effort", None)
    if effort == "none":
        switches.add(False)
    elif effort is not None:
        options["reasoning_effort"] = _NEAREST.get(str(effort), effort)
    if len(switches) > 1:
        raise InvalidRequestError("Thinking is switched both on and off.", field="chat_template_kwargs")
    if switches:
        options["enable_thinking"] = switches.pop()
    return options


def thinking_of(model: ServedModel, *, inside: bool, budget: int | None, formatted: bool) -> Thinking | None:
    """The reply's thinking block, None for a model without one.

    A closed budget ends with a blank line, as the model writes it itself, unless a format follows.
    """
    if model.think is None:
        if budget is not None:
            raise InvalidRequestError("The model does not think in a block.", field="thinking_budget")
        return None
    begin, end = model.think
    close = "\n</think>" if formatted else "\n</think>\n\n"
    forced = tuple(model.text.tokenizer.encode(close))
    return Thinking(close_id=end, open_id=begin, inside=inside, budget=budget, forced_close=forced)
