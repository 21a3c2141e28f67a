"""Which names a `config.json` may use: a list of what belongs into a graph.

Of roxxel these are the public classes and functions of the modules below, of
`experiments` and `configs` what they define under a public name, and of other packages
what computes: layers, initializers, optimizers, types. Everything else that could be
imported - command lines, methods that write or remove files, callbacks, readers of
pickles - is refused, and so is any own name with a leading underscore.
"""

import enum
import importlib
import sys
import types
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from fiddle.experimental import serialization

OWN_PACKAGES = ("roxxel", "experiments", "configs")
# Modules of roxxel to the names in them that belong into a graph; None: all that the
# module, or one below it, defines under a public name.
_ROXXEL: dict[str, frozenset[str] | None] = {
    "roxxel.axis_rules": frozenset({"AxisRules"}),
    "roxxel.budget": None,
    "roxxel.builders": None,
    "roxxel.building.foreign": None,
    "roxxel.checkpoint": frozenset({"Checkpointer"}),
    "roxxel.config.stored": None,
    "roxxel.data.aligned": frozenset({"AlignedStream"}),
    "roxxel.data.mixture_stream": frozenset({"MixtureStream"}),
    "roxxel.data.phases": frozenset({"Phase"}),
    "roxxel.data.stream": frozenset({"RoxxelStream"}),
    "roxxel.dataset": frozenset({"Roxxel"}),
    "roxxel.exchange.huggingface": frozenset({"model_of"}),
    "roxxel.logger": frozenset({"Logger"}),
    "roxxel.models": None,
    "roxxel.optim": None,
    "roxxel.schedules": None,
    "roxxel.sharding": None,
    **{
        f"roxxel.sinks.{module}": frozenset({name})
        for module, name in (
            *(("console", "ConsoleSink"), ("csv", "CsvSink"), ("jsonl", "JsonlSink")),
            *(("mlflow", "MlflowSink"), ("tensorboard", "TensorBoardSink")),
            *(("textlog", "TextLogSink"), ("wandb", "WandbSink")),
        )
    },
    "roxxel.tokenizers": None,
    "roxxel.tasks": None,
    "roxxel.train.divergence": frozenset({"Divergence"}),
    "roxxel.train.early_stopping": frozenset({"EarlyStopping"}),
    "roxxel.train.evaluation": frozenset({"Evaluation"}),
    "roxxel.train.inputs": frozenset({"Input"}),
    "roxxel.train.precision": frozenset({"Precision"}),
    "roxxel.train.sample": frozenset({"Sample"}),
    "roxxel.train.trainer": frozenset({"Trainer"}),
}
# Own modules that are commands.
_COMMANDS = ("configs.search", "configs.trial_check")
# Public modules of other packages whose classes and functions only compute. A value
# counts when it is found in one of them, wherever it was defined.
_COMPUTING = (
    *("flax.linen", "flax.linen.initializers", "flax.nnx", "flax.nnx.initializers"),
    *("jax.lax", "jax.nn", "jax.nn.initializers", "jax.random"),
    *("optax", "optax.contrib", "optax.losses", "optax.schedules"),
    "jax.checkpoint_policies",
)
# Names there that change settings of the process, or write.
_NOT_COMPUTING = frozenset(
    {"set_mesh", "use_mesh", "display", "tabulate", "show_trace"}
)
# Where such values may be imported from: their public modules, and where they live.
_HOMES = (
    *("flax.linen", "flax.nnx", "flax.core.frozen_dict", "jax.lax", "jax.nn"),
    *("jax.random", "jax.sharding", "jax._src.lax", "jax._src.nn", "jax._src.random"),
    *("jax._src.ad_checkpoint", "jax._src.mesh", "jax._src.named_sharding"),
    *("jax._src.partition_spec", "jax._src.numpy", "optax"),
)
_EXACT_HOMES = ("jax", "jax.numpy", "ml_dtypes", "numpy", "collections")
_BUILTINS = frozenset(
    {
        *("bool", "bytes", "complex", "dict", "float", "frozenset", "int", "list"),
        *("max", "min", "set", "slice", "str", "sum", "tuple", "abs", "round", "len"),
    }
)
_COLLECTIONS = frozenset({"Counter", "OrderedDict", "defaultdict", "deque"})
_FIDDLE = ("fiddle._src.config", "fiddle._src.partial", "fiddle._src.signatures")
_FIDDLE += ("fiddle._src.tagging",)
_JITTED = ("PjitFunction", "custom_jvp", "custom_vjp")


class Policy(serialization.PyrefPolicy):
    """Which names a config file may import.

    Args:
      trusted: packages or modules that the user named; all in them counts.
      trust_all: whether anything counts.
    """

    def __init__(self, trusted: Sequence[str] = (), trust_all: bool = False):
        self._trusted = tuple(trusted)
        self._trust_all = trust_all

    def allows_import(self, module: str, symbol: str) -> bool:
        """Whether a module may be imported for a name in it."""
        if self._trust_all:
            return True
        if not isinstance(module, str) or not isinstance(symbol, str):
            return False
        names = f"{module}.{symbol}".split(".")
        if any(name.startswith("__") for name in names):
            return False
        if is_within(module, self._trusted):
            return True
        if is_within(module, OWN_PACKAGES):
            public = not any(map(_is_private, names)) and module not in _COMMANDS
            return public and _may_import_own(module)
        if any(map(_is_private, symbol.split("."))):
            return False
        if module == "builtins":
            return symbol in _BUILTINS
        return module in _EXACT_HOMES or is_within(module, (*_HOMES, "fiddle"))

    def allows_value(self, value: Any) -> bool:
        """Whether what the name led to may be part of a graph."""
        if self._trust_all:
            return True
        if isinstance(value, ModuleType):
            return False
        home = _home(value)
        if is_within(home, self._trusted):
            return True
        name = _name(value)
        if is_within(home, OWN_PACKAGES):
            return _is_own(value, home, name)
        if home == "builtins":
            return name in _BUILTINS and getattr(sys.modules[home], name) is value
        if home == "collections":
            return isinstance(value, type) and name in _COLLECTIONS
        if home in _FIDDLE:
            return isinstance(value, type) or name in ("tagvalue_fn", "tagged_value_fn")
        return _computes(value, name)


def is_within(module: str, packages: Sequence[str]) -> bool:
    """Whether a module is one of some packages, or inside one."""
    return any(module == p or module.startswith(f"{p}.") for p in packages)


def _may_import_own(module: str) -> bool:
    inside = is_within(module, ("roxxel",)) and module != "roxxel"
    return not inside or is_within(module, tuple(_ROXXEL))


def _is_private(name: str) -> bool:
    return name.startswith("_")


def _home(value: Any) -> str:
    """The module in which a value, or the type of an object, was defined."""
    if isinstance(value, enum.Enum):
        return type(value).__module__
    home = getattr(value, "__module__", None)
    return str(type(value).__module__ if home is None else home)


def _name(value: Any) -> str:
    """The name of a class, function or enumeration within its module."""
    of = type(value) if isinstance(value, enum.Enum) else value
    return str(getattr(of, "__qualname__", None) or getattr(of, "__name__", ""))


def _is_own(value: Any, home: str, name: str) -> bool:
    """Whether a class, function or enumeration of an own module is for graphs."""
    if not (_is_defined(value) or isinstance(value, enum.Enum)):
        return False
    is_class = isinstance(value, (type, enum.Enum))
    names = [*home.split("."), *name.split(".")]
    if any(map(_is_private, names)) or ("." in name and not is_class):
        return False
    if not is_within(home, ("roxxel",)):
        return home not in _COMMANDS and name != "main"
    for module, allowed in _ROXXEL.items():
        if is_within(home, (module,)):
            return name in allowed if allowed is not None else True
    return False


def _is_defined(value: Any) -> bool:
    """Whether a value is a class or a function, jitted or not, and no method."""
    plain = (type, types.FunctionType)
    return isinstance(value, plain) or type(value).__name__ in _JITTED


def _computes(value: Any, name: str) -> bool:
    """Whether a value of another package is a type of numbers or only computes."""
    if _is_number_type(value) or type(value).__name__ == "ufunc":
        return True
    if isinstance(value, enum.Enum):
        return any(_found(type(value), name, _modules(_COMPUTING)))
    if name in _NOT_COMPUTING or not _is_defined(value):
        return False
    if any(_found(value, name, _modules(_COMPUTING))):
        return True
    is_type = isinstance(value, type)
    if is_type and any(_found(value, name, _modules(("jax.sharding",)))):
        return True
    if is_type and name in ("ShapeDtypeStruct", "FrozenDict"):
        return any(_found(value, name, _modules(("jax", "flax.core"))))
    jitted = type(value).__name__ in _JITTED
    return jitted and any(_found(value, name, _modules(("jax.numpy",))))


def _is_number_type(value: Any) -> bool:
    """`np.float32`, `jnp.bfloat16` and their like; `np.dtype` and `np.ndarray`."""
    if type(value).__name__ == "_ScalarMeta":
        return True
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, type):
        return False
    exact = (numpy.dtype, numpy.ndarray)
    return value in exact or issubclass(value, (numpy.generic, numpy.dtype))


def _found(value: Any, name: str, modules: Iterator[Any]) -> Iterator[bool]:
    """For each module whether the value is one of its public names."""
    short = name.rpartition(".")[2]
    for module in modules:
        public = (held for key, held in vars(module).items() if not _is_private(key))
        yield getattr(module, short, None) is value or any(h is value for h in public)


def _modules(names: Sequence[str]) -> Iterator[Any]:
    """Modules of packages that are imported already, as a value of theirs was."""
    for name in names:
        if name.partition(".")[0] not in sys.modules:
            continue
        try:
            yield importlib.import_module(name)
        except ImportError:  # no module of the installed version
            parent, _, last = name.rpartition(".")
            found = getattr(sys.modules.get(parent), last, None)
            if found is not None:
                yield found
