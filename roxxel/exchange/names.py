"""Which tensor of a foreign checkpoint is which array of a model here."""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np

# "transposed": torch keeps a linear map as [out, in], a model here as [in, out].
# "taps": a depthwise convolution is [channels, 1, taps] there, [taps, channels] here.
# "rows": as it is, and here there may be rows behind that pad the vocabulary.
Form = Literal["same", "transposed", "taps", "rows"]


class Pair(NamedTuple):
    """A tensor there, the array here (dotted path), and how they differ."""

    theirs: str
    ours: str
    form: Form

    def to_ours(self, tensor: np.ndarray) -> np.ndarray:
        """A view of their tensor in the layout here."""
        if self.form == "transposed":
            return tensor.T
        return tensor[:, 0].T if self.form == "taps" else tensor

    def to_theirs(self, array: np.ndarray) -> np.ndarray:
        """A view of an array here in their layout."""
        if self.form == "transposed":
            return array.T
        return array.T[:, None] if self.form == "taps" else array

    def dims(self) -> int | None:
        """Dimensions of the tensor there; None: any."""
        return {"transposed": 2, "taps": 3, "rows": 2}.get(self.form)


def expand(
    table: Mapping[str, tuple[str, Form]], *, n_layers: int, without: Iterable[str] = ()
) -> list[Pair]:
    """The pairs of a whole model.

    Args:
      table: their names to names here and forms; `{}` stands for a layer's number.
      n_layers: how many there are.
      without: endings of names there that this model does not have.
    """
    endings = tuple(without)
    pairs = []
    for theirs, (ours, form) in table.items():
        if endings and theirs.endswith(endings):
            continue
        layers = range(n_layers) if "{}" in theirs else [0]
        pairs += [Pair(theirs.format(i), ours.format(i), form) for i in layers]
    return pairs
