"""One request on its way: its rows in the engine, its answer whole or in parts."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from roxxel.generation.sampling import Sampling
from roxxel.serving import engine as engine_lib
from roxxel.serving import protocol
from roxxel.serving.protocol import RequestError

if TYPE_CHECKING:
    from roxxel.serving.app import Service

_NOBODY = 499  # the status of an answer that no one hears


class Job:
    """The choices of one request.

    Raises:
      RequestError: a prompt is not as it has to be.
    """

    def __init__(self, service: "Service", wanted: protocol.Completion):
        self.wanted = wanted
        self.number = f"cmpl-{secrets.token_hex(12)}"
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue = asyncio.Queue()
        seed = secrets.randbits(62) if wanted.seed is None else wanted.seed
        prompts = [service.ids(p, i) for i, p in enumerate(wanted.prompts)]
        for ids in prompts:
            _check_length(len(ids), wanted.max_tokens, service.max_length)
        self.prompt_tokens = sum(map(len, prompts))
        self.echoes = [
            service.text(ids) if wanted.echo else ""
            for ids in prompts
            for _ in range(wanted.n)
        ]
        self.rows = [
            engine_lib.Row(
                ids,
                Sampling(**wanted.options, seed=(seed + choice) % 2**63),
                service.continuation(wanted, ids),
                self._emitter(index * wanted.n + choice),
            )
            for index, ids in enumerate(prompts)
            for choice in range(wanted.n)
        ]

    def submit(self, engine: engine_lib.Engine) -> None:
        """Puts the rows into the engine's queue.

        Raises:
          RequestError: 429 where too many wait, 503 where the engine has failed.
        """
        if len(self.rows) > engine.max_queue:
            message = f"prompts times n must be at most {engine.max_queue}."
            raise RequestError(400, message, param="n")
        try:
            engine.submit(self.rows)
        except engine_lib.Full as err:
            raise RequestError(429, "too many requests wait; try again later.") from err
        except Exception as err:
            raise RequestError(503, "the model does not answer any more.") from err

    def _emitter(self, index: int) -> Callable[[str, str | None], None]:
        def emit(text: str, reason: str | None) -> None:
            with contextlib.suppress(RuntimeError):  # the server has closed
                self._loop.call_soon_threadsafe(
                    self._news.put_nowait, (index, text, reason)
                )

        return emit

    async def _events(self) -> AsyncGenerator[tuple[int, str, str | None]]:
        """What happens, until all choices ended; cancels them when it is left."""
        try:
            for index, echo in enumerate(self.echoes):
                if echo:
                    yield index, echo, None
            left = len(self.rows)
            while left:
                index, text, reason = await self._news.get()
                left -= reason is not None
                yield index, text, reason
        finally:
            for row in self.rows:
                row.cancelled = True

    def usage(self) -> dict[str, int]:
        """Tokens of the prompts and of all choices so far."""
        tokens = sum(row.continuation.num_tokens for row in self.rows)
        return protocol.usage(self.prompt_tokens, tokens)

    async def whole(self, request: Request, model: str) -> Response:
        """The answer when all is there; a client that goes away ends the work."""
        texts = [""] * len(self.rows)
        reasons: list[str | None] = [None] * len(self.rows)

        async def collect() -> None:
            async for index, text, reason in self._events():
                texts[index] += text
                reasons[index] = reason

        if not await _while_connected(request, collect()):
            return Response(status_code=_NOBODY)
        if "error" in reasons:
            raise _cut_off()
        choices = [
            protocol.choice(index, text, reason)
            for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        ]
        body = protocol.answer(model, self.number, choices, usage=self.usage())
        return JSONResponse(body)

    async def parts(self, model: str) -> AsyncIterator[str]:
        """Server-sent events as text comes; leaving them ends the work."""
        async with contextlib.aclosing(self._events()) as events:
            async for index, text, reason in events:
                if reason == "error":
                    yield _event(_cut_off().body())
                    return
                choices = [protocol.choice(index, text, reason)]
                yield _event(protocol.answer(model, self.number, choices))
        if self.wanted.with_usage:
            usage = self.usage()
            yield _event(protocol.answer(model, self.number, [], usage=usage))
        yield "data: [DONE]\n\n"


def _cut_off() -> RequestError:
    return RequestError(500, "cut off: the server ends, or the model has failed.")


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _check_length(prompt: int, more: int, most: int) -> None:
    if prompt + more > most:
        message = (
            f"the prompt has {prompt} tokens and max_tokens is {more}; together at "
            f"most {most}."
        )
        code = "context_length_exceeded"
        raise RequestError(400, message, param="max_tokens", code=code)


async def _while_connected(request: Request, work: Any) -> bool:
    """Whether the work ended before the client went away, which cancels it."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.create_task(work), asyncio.create_task(gone())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    if tasks[0] not in done:
        return False
    await tasks[0]
    return True
