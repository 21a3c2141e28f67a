"""Text that grows token by token: whole characters, stop sequences, why it ended."""

from collections.abc import Iterable, Sequence
from typing import Any

_UNFINISHED = "\ufffd"  # what a tokenizer makes of bytes that are no whole character
_LONGEST_CHARACTER = 8  # tokens; more that make no character are no unfinished one


class Continuation:
    """The text of one row, as far as it is certain.

    Args:
      tokenizer: a `roxxel.tokenizers` tokenizer.
      max_tokens: ends with "length" after so many tokens.
      stops: texts that end it with "stop"; they and what follows are left out.
      end_id: token that ends it with "stop"; None: none does.
      before: ids that it follows. Some tokenizers leave out the space before the first
        token that they are given.

    Attributes:
      finish_reason: None while it goes on, then "stop" or "length".
      num_tokens: tokens taken.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_tokens: int,
        stops: Sequence[str] = (),
        end_id: int | None = None,
        before: Sequence[Any] = (),
    ):
        self._tokenizer, self._stops, self._end_id = tokenizer, tuple(stops), end_id
        self.max_tokens, self.num_tokens = max_tokens, 0
        self.finish_reason: str | None = None
        self._ids = self._context(before)
        self._shown_from, self._shown_to = 0, len(self._ids)  # tokens whose text is out
        self._held = ""  # may be the beginning of a stop sequence

    def feed(self, ids: Iterable[Any]) -> str:
        """The text that more tokens make certain; those after the end are ignored."""
        text = ""
        for token in ids:
            if self.finish_reason is not None:
                break
            text += self._take(int(token))
        return text

    def _context(self, before: Sequence[Any]) -> list[int]:
        """The last ids of `before`, unless they end within a character."""
        ids = [int(one) for one in before[-_LONGEST_CHARACTER:]]
        return [] if self._tokenizer.decode(ids).endswith(_UNFINISHED) else ids

    def _take(self, token: int) -> str:
        self.num_tokens += 1
        if token == self._end_id:
            self.finish_reason = "stop"
            return self._stopped(self._characters(final=True), hold=False)
        self._ids.append(token)
        is_last = self.num_tokens >= self.max_tokens
        text = self._stopped(self._characters(final=is_last))
        if self.finish_reason is None and is_last:
            self.finish_reason = "length"
            text += self._held
        return text

    def _characters(self, *, final: bool) -> str:
        """The text of tokens not shown yet; "" while a character is unfinished."""
        shown = self._tokenizer.decode(self._ids[self._shown_from : self._shown_to])
        whole = self._tokenizer.decode(self._ids[self._shown_from :])
        waiting = len(self._ids) - self._shown_to
        unfinished = whole.endswith(_UNFINISHED) and waiting < _LONGEST_CHARACTER
        if not waiting or (unfinished and not final):
            return ""
        self._shown_from, self._shown_to = self._shown_to, len(self._ids)
        return whole[len(shown) :]

    def _stopped(self, text: str, *, hold: bool = True) -> str:
        """`text` up to a stop sequence, without an end that may become one."""
        held = self._held + text
        found = [held.find(stop) for stop in self._stops]
        if any(place >= 0 for place in found):
            self.finish_reason, self._held = "stop", ""
            return held[: min(place for place in found if place >= 0)]
        kept = self._may_begin(held) if hold else 0
        self._held = held[len(held) - kept :]
        return held[: len(held) - kept]

    def _may_begin(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop sequence."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
