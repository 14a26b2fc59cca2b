"""Plain completions, whole or chunk by chunk."""

import time
from collections.abc import Sequence

from intarsia.server.output.logprobs import (
    completion_logprobs,
    echoed_logprobs,
    joined,
    prompt_logprobs,
)
from intarsia.server.output.reader import Part, ReplyReader
from intarsia.server.output.usage import usage_of
from intarsia.server.service import ServedModel
from intarsia.server.translate.plan import Plan
from intarsia.server.wire.told import CompletionChoice, CompletionLogprobs, CompletionResponse


class CompletionTeller:
    """Tells the replies of one completion request."""

    def __init__(self, plan: Plan, model: ServedModel) -> None:
        self.readers = [ReplyReader(choice.request, plan.telling, chat=False) for choice in plan.choices]
        self._plan = plan
        self._model = model
        self._created = int(time.time())
        self._offsets = [0] * len(self.readers)

    def opening(self) -> list[CompletionResponse]:
        """What a stream begins with: the prompts, if they are echoed."""
        if not self._plan.telling.echo:
            return []
        return [
            self._body([CompletionChoice(index=i, text=self._prompt(i), logprobs=None, finish_reason=None)])
            for i in range(len(self.readers))
        ]

    def chunks(self, index: int, part: Part) -> list[CompletionResponse]:
        """What a stream tells of new text, and of the end if the reply is over."""
        reader, telling = self.readers[index], self._plan.telling
        reason = reader.finish_reason()
        if reason is None and not (part.content or part.logprobs or (telling.token_ids and part.ids)):
            return []
        choice = CompletionChoice(
            index=index,
            text=part.content,
            logprobs=self._logprobs(index, part),
            finish_reason=reason,
            stop_reason=reader.stop_reason(),
            token_ids=part.ids if telling.token_ids else None,
        )
        return [self._body([choice])]

    def usage_chunk(self) -> CompletionResponse:
        """The last chunk, if the client asked for usage."""
        chunk = self._body([])
        chunk.usage = usage_of(self._plan, self.readers)
        return chunk

    def whole(self, parts: Sequence[Part]) -> CompletionResponse:
        """The response of a request that is not streamed; one `Part` a reply."""
        body = self._body([self._choice(index, part) for index, part in enumerate(parts)])
        body.usage = usage_of(self._plan, self.readers)
        return body

    def _choice(self, index: int, part: Part) -> CompletionChoice:
        reader, telling = self.readers[index], self._plan.telling
        logprobs = self._logprobs(index, part)
        prompt = self._plan.choices[index].prompt
        if telling.echo_logprobs and logprobs is not None:
            echoed = echoed_logprobs(self._model, prompt, reader.prompt_logprobs, telling.top_logprobs)
            logprobs = joined(echoed, logprobs)
        told = reader.prompt_logprobs if not telling.echo_logprobs else None
        return CompletionChoice(
            index=index,
            text=(self._prompt(index) if telling.echo else "") + part.content,
            logprobs=logprobs,
            finish_reason=reader.finish_reason(),
            stop_reason=reader.stop_reason(),
            token_ids=part.ids if telling.token_ids else None,
            prompt_logprobs=prompt_logprobs(self._model, told) if told is not None else None,
            prompt_token_ids=list(prompt) if telling.token_ids else None,
        )

    def _logprobs(self, index: int, part: Part) -> CompletionLogprobs | None:
        telling = self._plan.telling
        if not telling.logprobs:
            return None
        if self._offsets[index] == 0 and telling.echo:
            self._offsets[index] = len(self._prompt(index))
        told = completion_logprobs(self._model, part.logprobs, telling.top_logprobs, self._offsets[index])
        self._offsets[index] += len(part.content)
        return told

    def _prompt(self, index: int) -> str:
        return self._model.text.tokenizer.decode(self._plan.choices[index].prompt)

    def _body(self, choices: list[CompletionChoice]) -> CompletionResponse:
        return CompletionResponse(
            id=self._plan.id,
            object="text_completion",
            created=self._created,
            model=self._plan.model,
            choices=choices,
        )
