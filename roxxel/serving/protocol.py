"""Requests and answers of OpenAI's completions: what is understood, and what is not.

The names are those of OpenAI's API reference, "Completions"; top_k, min_p and
repetition_penalty are further ones, as other servers have them.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from roxxel.errors import ConfigError

MAX_BODY_BYTES = 1 << 20
MAX_CHOICES = 16
MAX_STOPS = 16
_DEFAULT_TOKENS = 16  # as OpenAI's

# Fields that are taken with the values that ask for nothing.
_ONLY = {
    "logprobs": (None,),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
}
_FIELDS = {
    *("model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "seed", "n", "stop", "stream", "stream_options", "echo"),
    *("user", *_ONLY),
}


class RequestError(Exception):
    """A request that is refused, with the status and the fields of its answer."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str = ""
    ):
        super().__init__(_sendable(message))
        self.status, self.code = status, code or None
        self.param = param and _sendable(param)

    def body(self) -> dict[str, Any]:
        """The answer, in OpenAI's form."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        fields = {"type": kind, "param": self.param, "code": self.code}
        return {"error": {"message": str(self), **fields}}


def _sendable(text: str) -> str:
    """Without the lone surrogates that JSON may hold and UTF-8 may not."""
    return text.encode(errors="replace").decode()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion:
    """A checked request.

    Attributes:
      prompts: texts, or ids.
      options: of `generation.sampling.Sampling`, without the seed.
      seed: None: any.
      max_tokens: of each choice.
      n: choices of each prompt.
      stops: where a choice ends.
      stream, with_usage, echo: what the answer is like.
    """

    prompts: Sequence[str | list[int]]
    options: dict[str, Any]
    seed: int | None
    max_tokens: int
    n: int
    stops: tuple[str, ...]
    stream: bool
    with_usage: bool
    echo: bool


def parse(data: Any, model: str) -> Completion:
    """The request in a body.

    Raises:
      RequestError: 400 with what is wrong, 404 for another model.
    """
    if not isinstance(data, dict):
        raise RequestError(400, "the body must be a JSON object.")
    unknown = sorted(set(data) - _FIELDS)
    if unknown:
        message = f"Unrecognized request argument supplied: {unknown[0]}"
        raise RequestError(400, message, param=unknown[0])
    for name, taken in _ONLY.items():
        if data.get(name) not in taken:
            raise RequestError(400, f"{name} is not supported here.", param=name)
    if data.get("model") not in (None, model):
        message = f"The model {data['model']!r} does not exist; there is {model!r}."
        raise RequestError(404, message, param="model", code="model_not_found")
    stream_options = _field(data, "stream_options", {}, dict)
    return Completion(
        prompts=_prompts(data.get("prompt")),
        options=_options(data),
        seed=_int(data, "seed", None, 0, 2**63 - 1),
        max_tokens=_int(data, "max_tokens", _DEFAULT_TOKENS, 1, 2**31),
        n=_int(data, "n", 1, 1, MAX_CHOICES),
        stops=_stops(data.get("stop")),
        stream=_field(data, "stream", False, bool),
        with_usage=bool(stream_options.get("include_usage")),
        echo=_field(data, "echo", False, bool),
    )


def answer(model: str, number: str, choices: list[dict], **more: Any) -> dict[str, Any]:
    """A completion, or a part of a streamed one."""
    fields = {"id": number, "object": "text_completion", "created": int(time.time())}
    return fields | {"model": model, "choices": choices} | more


def choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    """One of the choices of an answer."""
    fields = {"index": index, "text": text}
    return fields | {"logprobs": None, "finish_reason": reason}


def usage(prompt_tokens: int, tokens: int) -> dict[str, int]:
    """The counts of an answer."""
    total = prompt_tokens + tokens
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
    return counts | {"total_tokens": total}


def _options(data: dict[str, Any]) -> dict[str, Any]:
    from roxxel.generation.sampling import Sampling

    options: dict[str, Any] = {
        name: _float(data, name, default)
        for name, default in (
            *(("temperature", 1.0), ("top_p", 1.0)),
            *(("min_p", 0.0), ("repetition_penalty", 1.0)),
        )
    }
    options["top_k"] = _int(data, "top_k", None, 1, 2**31 - 1)
    try:
        Sampling(**options)
    except ConfigError as err:
        raise RequestError(400, str(err), param=str(err).split()[0]) from err
    return options


def _prompts(prompt: Any) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if _is_ids(prompt):
        return [prompt]
    is_list = isinstance(prompt, list) and prompt
    if is_list and all(isinstance(one, str) or _is_ids(one) for one in prompt):
        return prompt
    message = "prompt must be text, a list of texts, a list of ids, or lists of ids."
    raise RequestError(400, message, param="prompt")


def _is_ids(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(one, int) and not isinstance(one, bool) for one in value)


def _stops(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else given or []
    good = isinstance(stops, list) and len(stops) <= MAX_STOPS
    if not good or not all(isinstance(one, str) and one for one in stops):
        message = f"stop must be a text or a list of at most {MAX_STOPS} texts."
        raise RequestError(400, message, param="stop")
    return tuple(stops)


def _int(data: dict, name: str, default: Any, least: int, most: int) -> Any:
    value = _field(data, name, default, int)
    if value is not None and not least <= value <= most:
        message = f"{name} must be from {least} to {most}, got {value}."
        raise RequestError(400, message, param=name)
    return value


def _float(data: dict, name: str, default: float) -> float:
    try:
        return float(_field(data, name, default, (int, float)))
    except OverflowError as err:
        raise RequestError(400, f"{name} is too large.", param=name) from err


def _field(data: dict, name: str, default: Any, kind: Any) -> Any:
    value = data.get(name)
    if value is None:
        return default
    is_bool = isinstance(value, bool)
    if not isinstance(value, kind) or (is_bool and kind is not bool):
        raise RequestError(400, f"{name} is of the wrong type.", param=name)
    return value
