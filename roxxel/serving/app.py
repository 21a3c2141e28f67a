"""The HTTP application: routes, limits, streams."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roxxel import extras

try:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import (
        HTMLResponse,
        JSONResponse,
        Response,
        StreamingResponse,
    )
    from starlette.routing import Route
except ImportError as err:
    raise extras.missing("roxxel.serving", "serve", err) from err

from roxxel.errors import ConfigError
from roxxel.generation.text import Continuation
from roxxel.serving import engine as engine_lib
from roxxel.serving import protocol
from roxxel.serving.job import Job
from roxxel.serving.protocol import RequestError

_PAGE = Path(__file__).with_name("page.html")
# The last is what Starlette before 1.0 makes of `[::1]:8000`.
_LOCAL_HOSTS = ["127.0.0.1", "localhost", "[::1]", "["]
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}


def make(
    engine: engine_lib.Engine,
    *,
    model: str,
    tokenizer: Any,
    encode: Callable[[str, str], Any],
    end_id: int | None,
    only_local: bool,
) -> Starlette:
    """The application.

    Args:
      engine: the decode loop, started.
      model: its name.
      tokenizer: ids to text.
      encode: a prompt's ids; raises a ConfigError with what is wrong.
      end_id: the token that ends a document, or None.
      only_local: refuse requests that name another host: a page from elsewhere may not
        get here by a name of its own.
    """
    service = Service(engine, model, tokenizer, encode, end_id)
    hosts = _LOCAL_HOSTS if only_local else ["*"]
    return Starlette(
        routes=[
            Route("/", _page),
            Route("/health", service.health),
            Route("/v1/models", service.models),
            Route("/v1/models/{name}", service.models),
            Route("/v1/completions", service.completions, methods=["POST"]),
            Route("/v1/chat/completions", _no_chat, methods=["POST"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
        exception_handlers={
            RequestError: _refused,
            404: _not_found,
            405: _not_found,
            500: _failed,
        },
    )


class Service:
    """What the routes share; see `make`."""

    def __init__(self, engine, model, tokenizer, encode, end_id):
        self._engine, self._model, self._tokenizer = engine, model, tokenizer
        self._encode, self._end_id = encode, end_id

    async def health(self, request: Request) -> Response:
        """Whether the decode loop runs, and how many rows are in use."""
        del request
        is_well = self._engine.error is None
        fields = {"status": "ok" if is_well else "failed"}
        fields |= {"rows": self._engine.num_rows, "of": self._engine.max_rows}
        return JSONResponse(fields, 200 if is_well else 503)

    async def models(self, request: Request) -> Response:
        """The one model there is."""
        card = {"id": self._model, "object": "model", "created": 0}
        card |= {"owned_by": "roxxel"}
        name = request.path_params.get("name")
        if name is None:
            return JSONResponse({"object": "list", "data": [card]})
        if name != self._model:
            raise RequestError(404, f"The model {name!r} does not exist.")
        return JSONResponse(card)

    async def completions(self, request: Request) -> Response:
        """Continues prompts."""
        wanted = protocol.parse(await _json(request), self._model)
        job = Job(self, wanted)
        job.submit(self._engine)
        if wanted.stream:
            headers = {"Cache-Control": "no-store"}
            parts = job.parts(self._model)
            return StreamingResponse(
                parts, media_type="text/event-stream", headers=headers
            )
        return await job.whole(request, self._model)

    def ids(self, prompt: Any, index: int) -> Any:
        """The ids of a prompt, checked."""
        import numpy as np

        if prompt == "" and self._end_id is not None:
            prompt = [self._end_id]  # the beginning of a document
        if isinstance(prompt, str):
            try:
                return self._encode(prompt, f"prompt {index}")
            except ConfigError as err:
                raise RequestError(400, str(err), param="prompt") from err
        size = self._engine.num_ids
        if not all(0 <= one < size for one in prompt):
            message = f"prompt {index}: ids must be from 0 to {size - 1}."
            raise RequestError(400, message, param="prompt")
        return np.asarray(prompt, np.int32)

    def continuation(self, wanted: protocol.Completion, ids: Any) -> Continuation:
        """Takes the tokens of a choice that follow `ids`."""
        return Continuation(
            self._tokenizer,
            max_tokens=wanted.max_tokens,
            stops=wanted.stops,
            end_id=self._end_id,
            before=ids,
        )

    def text(self, ids: Any) -> str:
        """The text of a prompt."""
        return self._tokenizer.decode(ids)

    @property
    def max_length(self) -> int:
        """Tokens of prompt and continuation."""
        return self._engine.max_length


async def _json(request: Request) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, "the content type must be application/json.")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > protocol.MAX_BODY_BYTES:
                most = protocol.MAX_BODY_BYTES
                raise RequestError(413, f"the body is over {most} bytes.")
    except ClientDisconnect as err:
        raise RequestError(400, "the body ended early.") from err
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as err:
        raise RequestError(400, f"the body is no JSON: {err}") from err


async def _page(request: Request) -> Response:
    del request
    return HTMLResponse(_PAGE.read_text(encoding="utf-8"), headers=_HEADERS)


async def _no_chat(request: Request) -> Response:
    del request
    message = "This is a model for completions: use /v1/completions, not chat."
    raise RequestError(404, message, param="model")


async def _refused(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, RequestError)
    headers = {"Retry-After": "1"} if error.status == 429 else None
    return JSONResponse(error.body(), error.status, headers)


async def _not_found(request: Request, error: Any) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}."
    return JSONResponse(
        RequestError(error.status_code, message).body(), error.status_code
    )


async def _failed(request: Request, error: Exception) -> Response:
    del request, error
    return JSONResponse(RequestError(500, "the server failed.").body(), 500)
