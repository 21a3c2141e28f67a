"""TPU topologies by name, as devices to compile for; none of them has to be here.

The compiler is the package `libtpu`, which needs no TPU to compile.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
import sys
import tempfile
from collections.abc import Generator
from typing import Any

from roxxel import hardware
from roxxel.errors import ConfigError

_NAME = re.compile(r"(v\d+\w*):(\d+(?:x\d+)*)")
_EXAMPLES = "v5e:4x4, v6e:16x16, v4:4x4x4 or v5p:2x2x2"
# Two cores of a chip act as one device, as they do on the real machines.
_MEGACORE = ("v4", "v5p")
# Chips in a plane; those of the others lie in three dimensions.
_FLAT = ("v5e", "v6e")
# libtpu asks the cloud's metadata server, and one process at a time, unless told.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
_MOST_CHIPS = 1 << 14


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """Chips in a grid, and how many such grids a network joins.

    Attributes:
      chip: their kind.
      grid: chips along each dimension of one slice.
      num_slices: slices of that size.
    """

    chip: hardware.Chip
    grid: tuple[int, ...]
    num_slices: int = 1

    @property
    def num_chips(self) -> int:
        """Chips of all slices."""
        return math.prod(self.grid) * self.num_slices

    @property
    def name(self) -> str:
        """Of one slice, "v5e:4x4"."""
        return f"{self.chip.name}:{'x'.join(map(str, self.grid))}"

    def __str__(self) -> str:
        slices = "" if self.num_slices == 1 else f"{self.num_slices} slices of "
        return f"{slices}{self.name}"


def parse(text: str, num_slices: int = 1) -> Topology:
    """The topology of a name such as "v5e:16x16".

    Raises:
      ConfigError: it is no such name, or of an unknown chip.
    """
    match = _NAME.fullmatch(text.strip().lower())
    if match is None or match[1] not in hardware.TPUS:
        raise ConfigError(
            f"--topology={text}: expected a chip ({', '.join(hardware.TPUS)}) and the "
            f"grid of its chips, as {_EXAMPLES}."
        )
    grid = tuple(map(int, match[2].split("x")))
    found = Topology(chip=hardware.TPUS[match[1]], grid=grid, num_slices=num_slices)
    flat = found.chip.name in _FLAT and len(grid) == 3 and grid[2] != 1
    if flat:
        raise ConfigError(
            f"--topology={text}: the chips of a {found.chip.name} lie in a plane: "
            f"expected 2 sizes, as {found.chip.name}:4x4."
        )
    if not 1 <= found.num_chips <= _MOST_CHIPS or len(grid) not in (2, 3):
        raise ConfigError(
            f"--topology={text}: expected 2 or 3 sizes of at least 1 and at most "
            f"{_MOST_CHIPS} chips in all, as {_EXAMPLES}."
        )
    return found


def check_compiler() -> None:
    """Raises ConfigError where no compiler for TPUs is installed."""
    given = os.environ.get("TPU_LIBRARY_PATH")
    if importlib.util.find_spec("libtpu") is None and not given:
        raise ConfigError(
            "--topology compiles for TPUs and needs libtpu, which runs without one: "
            "pip install libtpu"
        )


def open_devices(topology: Topology) -> list[Any]:
    """The devices of a topology, to compile for.

    Raises:
      ConfigError: there is no compiler, or it knows no such topology.
    """
    check_compiler()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import jax
    from jax.experimental import topologies

    # Constants of a trace must not claim an accelerator of this machine.
    jax.config.update("jax_platforms", "cpu")
    options: dict[str, Any] = {}
    if topology.chip.name in _MEGACORE:
        options["chip_config_name"] = "megacore"
    if topology.num_slices > 1:
        options["num_slices"] = topology.num_slices
    with quiet():
        try:
            found = topologies.get_topology_desc(
                platform="tpu", topology_name=topology.name, **options
            )
        except jax.errors.JaxRuntimeError as err:
            text = str(err).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
            raise ConfigError(f"--topology={topology.name}: libtpu: {text}") from err
    return list(found.devices)


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """What libraries write to the file of stderr is kept back, unless they fail."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        before = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except ConfigError:
            raise
        except Exception as err:
            kept.seek(0)
            lines = kept.read().decode(errors="replace").splitlines()
            err.add_note("\n".join(lines[-20:]))
            raise
        finally:
            os.dup2(before, 2)
            os.close(before)
