"""`--mode=sample`: text from the model of a run."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from roxxel import errors
from roxxel.config import arguments, continuing, resolve, say
from roxxel.errors import ConfigError

_BATCH = 64  # rows at once
_PACE_SECS = 0.05  # text comes that often


def run(found: resolve.Experiment, line: arguments.CommandLine) -> int:
    """Writes continuations of the prompts to stdout; the exit code.

    One prompt is streamed; several are continued together and written in their order.

    Raises:
      ConfigError: a flag, a prompt or the run is not as it has to be.
    """
    count = continuing.whole(line, "num_tokens", 200)
    samples = continuing.whole(line, "samples", 1)
    options = _options(line)
    prompts = _prompts(line)
    _check(options)
    ready = continuing.ready(found, line)
    say.lines([f"roxxel: note: step {ready.run.step} of {ready.run.workdir}"])
    rows = [
        _Row(ready, line, prompt, where, number, count)
        for prompt, where in prompts
        for number in range(samples)
    ]
    try:
        _write(ready, rows, options, count, as_json=line.on("json"))
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return errors.EXIT_OK


class _Row:
    def __init__(self, ready, line, prompt, where, number, count):
        from roxxel.generation.text import Continuation

        self.prompt, self.number = prompt, number
        self.ids = ready.encode(prompt, where)
        self.text = ""
        self.continuation = Continuation(
            ready.tokenizer,
            max_tokens=count,
            stops=line.lists.get("stop", []),
            end_id=ready.end_id,
            before=self.ids,
        )

    def feed(self, ids) -> str:
        new = self.continuation.feed(ids)
        self.text += new
        return new

    def as_json(self) -> str:
        fields = {
            "prompt": self.prompt,
            "sample": self.number,
            "text": self.text,
            "finish_reason": self.continuation.finish_reason,
            "tokens": self.continuation.num_tokens,
        }
        return json.dumps(fields, ensure_ascii=False)


def _options(line: arguments.CommandLine) -> dict[str, Any]:
    top_k = line.get("top_k")
    return {
        "temperature": continuing.real(line, "temperature", 0.7),
        "top_k": None if top_k is None else continuing.whole(line, "top_k", 1),
        "top_p": continuing.real(line, "top_p", 1.0),
        "min_p": continuing.real(line, "min_p", 0.0),
        "repetition_penalty": continuing.real(line, "repetition_penalty", 1.0),
        "seed": continuing.whole(line, "seed", 0, least=0),
    }


def _check(options: dict[str, Any]) -> None:
    from roxxel.generation.sampling import Sampling

    try:
        Sampling(**options)
    except ConfigError as err:
        raise ConfigError(f"--{err}") from err


def _prompts(line: arguments.CommandLine) -> list[tuple[str, str]]:
    """Each prompt, and what to call it in a message."""
    text, file = line.get("prompt"), line.get("prompt_file")
    if text is not None and file is not None:
        raise ConfigError("--prompt and --prompt_file exclude each other.")
    if text is not None:
        return [(text, "--prompt")]
    if file is None:
        raise ConfigError(
            "--mode=sample: give --prompt=TEXT, or --prompt_file=FILE with a prompt a "
            "line (- for stdin)."
        )
    try:
        content = (
            sys.stdin.read()
            if file == "-"
            else Path(os.path.expanduser(file)).read_text(encoding="utf-8")
        )
    except (OSError, UnicodeDecodeError) as err:
        why = getattr(err, "strerror", None) or "it is no UTF-8"
        raise ConfigError(f"--prompt_file={file}: cannot be read: {why}.") from err
    lines = [
        (prompt, f"--prompt_file={file}: line {number}")
        for number, prompt in enumerate(content.split("\n"), 1)
        if prompt
    ]
    if not lines:
        raise ConfigError(f"--prompt_file={file}: holds no prompt.")
    return lines


def _write(
    ready: continuing.Ready,
    rows: list[_Row],
    options: dict[str, Any],
    count: int,
    *,
    as_json: bool,
) -> None:
    out = sys.stdout
    alone = len(rows) == 1 and not as_json
    if alone:
        _put(out, rows[0].prompt)
    for begin in range(0, len(rows), _BATCH):
        batch = rows[begin : begin + _BATCH]
        first = options | {"seed": options["seed"] + begin}
        for new in _continued(ready, batch, first, count):
            if alone:
                _put(out, new[0])
        if not alone:
            for row in batch:
                _put(out, row.as_json() + "\n" if as_json else _shown(row, rows))
    if alone:
        _put(out, "\n")


def _continued(
    ready: continuing.Ready, rows: list[_Row], options: dict[str, Any], count: int
) -> Iterator[list[str]]:
    """The new text of each row, as it comes, until all rows ended."""
    import numpy as np

    from roxxel.generation import sampling

    settings = [
        sampling.Sampling(**options | {"seed": options["seed"] + index})
        for index in range(len(rows))
    ]
    parts = ready.decoder.continued(
        [row.ids for row in rows],
        sampling.knobs(settings, ready.decoder.vocab_size),
        sampling.Kinds.of(settings),
        count,
        pace_secs=_PACE_SECS,
    )
    with contextlib.closing(parts):
        for _, tokens in parts:
            columns = np.asarray(tokens).T
            yield [row.feed(ids) for row, ids in zip(rows, columns, strict=True)]
            if all(row.continuation.finish_reason for row in rows):
                return


def _shown(row: _Row, rows: list[_Row]) -> str:
    return f"=== {rows.index(row) + 1} of {len(rows)}\n{row.prompt}{row.text}\n"


def _put(out: TextIO, text: str) -> None:
    out.write(text.encode(errors="replace").decode())
    out.flush()
