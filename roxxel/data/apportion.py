"""Which part each of a sequence of draws goes to, by weights and in closed form.

A binary tree over the parts: of the first n draws of a node its left child has
floor(n * a / b), where a / b is the left child's share of the node's weight, and the
right child has the rest. Both grow by whole draws and never shrink, so the counts of
the parts do too; they sum to n, and each is within the depth of the tree, ceil(log2 of
the parts), of n times its weight, wherever n is. Any n costs the same.
"""

import fractions
from collections.abc import Sequence

import numpy as np

# Shares keep denominators below this, exact for any weights that people write; others
# are off by less than one draw in the first 2**46. Times a run it stays below 2**63.
_MAX_DENOMINATOR = 1 << 46
_RUN = 1 << 16  # draws that are shared out at once

# A part, or (a, b, left, right).
_Node = int | tuple[int, int, "_Node", "_Node"]


class Apportionment:
    """Draws shared out over parts 0, 1, ... by `weights`; those of 0 get none.

    Args:
        weights: Exact and not negative, at least one above 0.
    """

    def __init__(self, weights: Sequence[fractions.Fraction]):
        self.num_parts = len(weights)
        drawn = [(i, weight) for i, weight in enumerate(weights) if weight]
        self._paths: dict[int, list[tuple[int, int, bool]]] = {}
        self._root = self._grow(drawn, [])

    def counts(self, n: int) -> list[int]:
        """How many of the first `n` draws each part has."""
        out = [0] * self.num_parts
        nodes = [(self._root, n)]
        while nodes:
            node, count = nodes.pop()
            if isinstance(node, int):
                out[node] = count
                continue
            a, b, left, right = node
            lefts = count * a // b
            nodes += [(left, lefts), (right, count - lefts)]
        return out

    def fewest(self, part: int, count: int) -> int | None:
        """The fewest draws of which `part` has at least `count`; None if it never has.

        The inverse of floor(n * a / b) along the part's way up to the root.
        """
        if count <= 0:
            return 0
        if part not in self._paths:
            return None
        for a, b, is_left in self._paths[part]:
            own = a if is_left else b - a
            if not own:  # a share too small to be kept
                return None
            # the left child has floor(n * own / b) draws, the right one the ceiling
            count = -(-count * b // own) if is_left else (count - 1) * b // own + 1
        return count

    def parts(self, start: int, stop: int) -> np.ndarray:
        """The part of each of draws [start, stop), int64."""
        out = np.empty(stop - start, np.int64)
        for begin in range(start, stop, _RUN):
            end = min(begin + _RUN, stop)
            places = np.arange(begin - start, end - start)
            _fill(self._root, begin, places, out)
        return out

    def _grow(self, drawn: list, path: list) -> _Node:
        """The tree over `drawn`; notes the way up from each part."""
        if len(drawn) == 1:
            ((part, _),) = drawn
            self._paths[part] = path
            return part
        half = len(drawn) // 2
        left, all_ = (
            sum((weight for _, weight in some), fractions.Fraction())
            for some in (drawn[:half], drawn)
        )
        share = (left / all_).limit_denominator(_MAX_DENOMINATOR)
        a, b = share.numerator, share.denominator
        return (
            a,
            b,
            self._grow(drawn[:half], [(a, b, True), *path]),
            self._grow(drawn[half:], [(a, b, False), *path]),
        )


def _fill(node: _Node, before: int, places: np.ndarray, out: np.ndarray) -> None:
    """Writes the parts of a node's draws `before`, `before` + 1, ... to `places`."""
    if isinstance(node, int):
        out[places] = node
        return
    if not places.size:
        return
    a, b, left, right = node
    lefts, rest = divmod(before * a, b)
    ends = (rest + a * np.arange(places.size + 1)) // b
    is_left = ends[1:] > ends[:-1]
    _fill(left, lefts, places[is_left], out)
    _fill(right, before - lefts, places[~is_left], out)
