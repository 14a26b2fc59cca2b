"""Replies to a conversation, whole or chunk by chunk."""

import secrets
import time
from collections.abc import Sequence

from intarsia.server.output.logprobs import chat_logprobs, prompt_logprobs
from intarsia.server.output.reader import Part, ReplyReader
from intarsia.server.output.tool_calls import ToolCall
from intarsia.server.output.usage import usage_of
from intarsia.server.service import ServedModel
from intarsia.server.translate.plan import Plan
from intarsia.server.wire.told import (
    CalledFunctionTold,
    CallTold,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatResponse,
    Delta,
    MessageTold,
)


class ChatTeller:
    """Tells the replies of one chat request."""

    def __init__(self, plan: Plan, model: ServedModel) -> None:
        self.readers = [ReplyReader(choice.request, plan.telling, chat=True) for choice in plan.choices]
        self._plan = plan
        self._model = model
        self._created = int(time.time())
        self._calls = [0] * len(self.readers)

    def opening(self) -> list[ChatChunk]:
        """What a stream begins with: the role of every reply."""
        first = Delta(role="assistant", content="")
        return [
            self._chunk([ChatChunkChoice(index=index, delta=first, finish_reason=None)])
            for index in range(len(self.readers))
        ]

    def chunks(self, index: int, part: Part) -> list[ChatChunk]:
        """What a stream tells of new text, and of the end if the reply is over."""
        reader, telling = self.readers[index], self._plan.telling
        chunks = []
        if part:
            delta = Delta(
                content=part.content or None,
                reasoning_content=part.reasoning or None,
                tool_calls=[self._call(index, call) for call in part.calls] or None,
            )
            logprobs = chat_logprobs(self._model, part.logprobs) if telling.logprobs else None
            ids = part.ids if telling.token_ids else None
            if part.content or part.reasoning or part.calls or ids or (logprobs and logprobs.content):
                choice = ChatChunkChoice(
                    index=index, delta=delta, finish_reason=None, logprobs=logprobs, token_ids=ids
                )
                chunks.append(self._chunk([choice]))
        if (reason := reader.finish_reason()) is not None:
            end = ChatChunkChoice(
                index=index, delta=Delta(), finish_reason=reason, stop_reason=reader.stop_reason()
            )
            chunks.append(self._chunk([end]))
        return chunks

    def usage_chunk(self) -> ChatChunk:
        """The last chunk, if the client asked for usage."""
        chunk = self._chunk([])
        chunk.usage = usage_of(self._plan, self.readers)
        return chunk

    def whole(self, parts: Sequence[Part]) -> ChatResponse:
        """The response of a request that is not streamed; one `Part` a reply."""
        told = [self._choice(index, part) for index, part in enumerate(parts)]
        asked, first = self.readers[0].request.prompt_logprobs, self.readers[0].prompt_logprobs
        return ChatResponse(
            id=self._plan.id,
            object="chat.completion",
            created=self._created,
            model=self._plan.model,
            choices=told,
            usage=usage_of(self._plan, self.readers),
            prompt_logprobs=prompt_logprobs(self._model, first) if asked is not None and first else None,
            prompt_token_ids=list(self._plan.choices[0].prompt) if self._plan.telling.token_ids else None,
        )

    def _choice(self, index: int, part: Part) -> ChatChoice:
        reader, telling = self.readers[index], self._plan.telling
        calls = [self._call(None, call) for call in part.calls]
        return ChatChoice(
            index=index,
            message=MessageTold(
                role="assistant",
                content=None if calls and not part.content else part.content,
                reasoning_content=part.reasoning or None,
                tool_calls=calls or None,
            ),
            logprobs=chat_logprobs(self._model, part.logprobs) if telling.logprobs else None,
            finish_reason=reader.finish_reason(),
            stop_reason=reader.stop_reason(),
            token_ids=part.ids if telling.token_ids else None,
        )

    def _call(self, index: int | None, call: ToolCall) -> CallTold:
        place = None
        if index is not None:
            place = self._calls[index]
            self._calls[index] += 1
        return CallTold(
            id=f"call_{secrets.token_hex(12)}",
            type="function",
            function=CalledFunctionTold(name=call.name, arguments=call.arguments),
            index=place,
        )

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return ChatChunk(
            id=self._plan.id,
            object="chat.completion.chunk",
            created=self._created,
            model=self._plan.model,
            choices=choices,
        )
