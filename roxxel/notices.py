"""Short texts that the processes of a run leave for each other.

They go through jax's coordination service, which lives in process 0: no device takes
part and none is waited for. A call takes a fraction of a millisecond.
"""

import sys
from typing import Any


class Board:
    """Texts by name, under one topic; the same in all processes.

    Attributes:
      index, count: of this process, and of all.
    """

    def __init__(self, client: Any, topic: str, index: int, count: int):
        self._client, self._prefix = client, f"roxxel/{topic}/"
        self.index, self.count = index, count

    def post(self, name: str, text: str) -> None:
        """Leaves `text` under `name`, in place of what was there."""
        self._client.key_value_set(self._prefix + name, text, allow_overwrite=True)

    def read(self, folder: str = "") -> dict[str, str]:
        """All texts whose name begins with `folder`, by the rest of their name."""
        prefix = f"{self._prefix}{folder}"
        found = self._client.key_value_dir_get(prefix)
        return {key.removeprefix(prefix): text for key, text in found}

    def wait_for(self, name: str, timeout_secs: float) -> str:
        """The text under `name`, once it is there.

        Raises:
          TimeoutError: it is not there in time.
        """
        import jax

        key = self._prefix + name
        try:
            return self._client.blocking_key_value_get(key, int(timeout_secs * 1000))
        except jax.errors.JaxRuntimeError as err:
            if "DEADLINE_EXCEEDED" not in str(err):
                raise
            raise TimeoutError(
                f"nothing under {name!r} within {timeout_secs:g} s"
            ) from err


def board(topic: str) -> Board | None:
    """The board of a topic; None where this process is alone."""
    distributed = sys.modules.get("jax._src.distributed")
    state = getattr(distributed, "global_state", None)
    if state is None or state.client is None or state.num_processes < 2:
        return None
    return Board(state.client, topic, state.process_id, state.num_processes)
