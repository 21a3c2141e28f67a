"""Sources whose parts do what tests need; worker processes import them from here."""

import dataclasses
import os
import signal
from typing import Any

import numpy as np


@dataclasses.dataclass
class Part:
    items: list
    path: str = "toy"

    @property
    def size(self) -> int:
        return len(self.items)

    def documents(self):
        for item in self.items:
            yield item() if callable(item) else item


@dataclasses.dataclass
class Source:
    """A part for every list."""

    lists: list[list]
    name: str = "toy"
    unit: str = "documents"
    extra: Any = None

    def key(self) -> dict:
        return {"lists": repr(self.lists)}

    def parts(self):
        return [Part(items, f"part{i}") for i, items in enumerate(self.lists)]


class OddError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class PlainError(KeyError):
    pass


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(7)


def raise_plain():
    raise PlainError("row 7 of file.x")


def raise_odd():
    raise OddError(1, 2)


def wait():
    """Says that it is there and goes on for ever."""
    with open(os.environ["WAITING"], "w") as file:
        file.write(f"{os.getpid()}\n")
        file.flush()
        os.read(os.pipe()[0], 1)


def numbers(*values, dtype="int64"):
    return np.array(values, dtype)
