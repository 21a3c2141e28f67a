"""What must be the same in all processes of a run, compared before it begins."""

import contextlib
import json
import time
from collections.abc import Mapping

from roxxel import distributed, notices, roll_call
from roxxel.errors import ConfigError

# For the verdict to arrive once process 0 has it.
_MORE_SECS = 30.0


def check_same(
    topic: str, values: Mapping[str, str], timeout_secs: float | str | None = None
) -> None:
    """Compares what must be equal in all processes; all must call it.

    Args:
      topic: what is compared, in a word; once a run.
      values: texts by key.
      timeout_secs: for all to come here.

    Raises:
      ConfigError: a process has another value, the same error in all of them.
      roll_call.JoinError: a process did not come here in time, or failed.
    """
    board = notices.board(f"same-{topic}")
    if board is None:
        return
    limit = distributed.limit_secs(timeout_secs)
    board.post(f"values/{board.index}", json.dumps(dict(values)))
    if board.index == 0:
        board.post("verdict", _verdict(board, topic, limit))
    try:
        verdict = board.wait_for("verdict", limit + _MORE_SECS)
    except TimeoutError:
        verdict = f"!process 0 did not compare {topic} within {limit:g} s."
    if verdict.startswith("!"):
        raise roll_call.JoinError(verdict[1:])
    if verdict:
        raise ConfigError(verdict)


def _verdict(board: notices.Board, topic: str, limit: float) -> str:
    """The first difference as a sentence; "!..." where a process is missing."""
    lead: dict[str, str] | None = None
    until = time.monotonic() + limit
    for index in range(board.count):
        left = max(until - time.monotonic(), 0.1)
        try:
            found = json.loads(_value_of(index, board, left))
        except RuntimeError as err:
            return f"!{err}"
        except TimeoutError:
            return (
                f"!process {index} of {board.count} did not get to compare {topic} "
                f"within {limit:g} s; see its output. {roll_call.RAISE_LIMIT}."
            )
        lead = found if lead is None else lead
        different = sorted(k for k in {*lead, *found} if lead.get(k) != found.get(k))
        if different:
            key = different[0]
            more = f" (and {len(different) - 1} more)" if different[1:] else ""
            return (
                f"process {index} differs from process 0 in the {topic}: {key} is "
                f"{found.get(key)} there and {lead.get(key)} here{more}. Start all "
                "processes with the same command, code and data."
            )
    return ""


def _value_of(index: int, board: notices.Board, timeout_secs: float) -> str:
    """What a process posted, looking meanwhile whether one has failed."""
    failures = notices.board("failed")
    until = time.monotonic() + timeout_secs
    while failures is not None and time.monotonic() < until:
        for other, text in failures.read().items():
            raise RuntimeError(f"process {other} failed {text}")
        with contextlib.suppress(TimeoutError):
            return board.wait_for(f"values/{index}", min(1.0, timeout_secs))
    raise TimeoutError
