"""`config.json` of a Hugging Face checkpoint: what model it tells of; and writing it.

A checkpoint is a folder with `config.json` and safetensors files, as transformers'
`save_pretrained` writes and `from_pretrained` reads.
"""

import dataclasses
import json
import os
import pathlib
from types import ModuleType
from typing import Any

from roxxel.errors import ConfigError
from roxxel.exchange import llama, mamba2, names, safetensors_files
from roxxel.exchange.fields import Fields

CONFIG = "config.json"
ARCHITECTURES: dict[str, ModuleType] = {m.MODEL_TYPE: m for m in (mamba2, llama)}

# Settings that the shapes of arrays show, or that change speed alone.
_SHOWN_BY_SHAPES = ("vocab_size", "d_model", "n_layers", "d_ff", "chunk_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """What a folder holds.

    Attributes:
      folder: absolute.
      architecture: the module of `roxxel.exchange` that knows it.
      settings: arguments of the model here, without those that change no results.
      stored: its tensors by their names, none of them read.
    """

    folder: pathlib.Path
    architecture: ModuleType
    settings: dict[str, Any]
    stored: dict[str, safetensors_files.Stored]

    def pairs(self) -> list[names.Pair]:
        """The tensors that the model needs, and what they are here."""
        return self.architecture.pairs(self.settings)

    def differences(self, model: Any) -> dict[str, str]:
        """Settings that `model` has otherwise and shapes do not show, each as text.

        Empty for a model of another class, which has settings of its own.
        """
        if not isinstance(model, self.architecture.MODEL):
            return {}
        here = self.architecture.settings_of(model)
        return {
            name: f"{name} ({_shown(value)} there, {_shown(here[name])} here)"
            for name, value in self.settings.items()
            if name not in _SHOWN_BY_SHAPES and here[name] != value
        }


def is_folder(path: Any) -> bool:
    """Whether `path` is a folder with a `config.json` of Hugging Face or its tensors.

    The work directory of a run has a `config.json` too, which holds a graph.
    """
    folder = pathlib.Path(os.path.expanduser(path))
    if any(folder.glob("*.safetensors*")) or any(folder.glob("pytorch_model*.bin")):
        return True
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and bool(
        {"model_type", "architectures"} & {*values}
    )


def read(path: Any) -> Description:
    """What the folder holds, told by its `config.json` and its files' headers.

    Raises:
      ConfigError: it is no such checkpoint, is damaged, or holds what no model here
        expresses; all that is wrong is in one line.
    """
    folder = pathlib.Path(os.path.expanduser(path)).absolute()
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: there is no such folder; expected config.json and safetensors."
        )
    values = _values(folder / CONFIG)
    architecture = _architecture(folder, values)
    fields = Fields(values)
    settings = architecture.settings(fields)
    stored = safetensors_files.read_folder(folder)
    head_there = "lm_head.weight" in stored
    settings["tie_embeddings"] = fields.flag("tie_word_embeddings", not head_there)
    if fields.problems:
        raise ConfigError(f"{folder / CONFIG}: {'; '.join(fields.problems)}.")
    found = Description(
        folder=folder, architecture=architecture, settings=settings, stored=stored
    )
    _check_tensors(found)
    return found


def _values(path: pathlib.Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text, object_hook=_plain)
    except OSError as err:
        raise ConfigError(f"{path}: cannot be read: {err.strerror}.") from err
    except ValueError as err:
        raise ConfigError(f"{path}: no JSON: {err}.") from err
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a JSON object.")
    return values


def _plain(value: dict[str, Any]) -> Any:
    """transformers 5 saves an infinity as `{"__float__": "Infinity"}`."""
    if value.keys() == {"__float__"}:
        return float(value["__float__"])
    return value


def _architecture(folder: pathlib.Path, values: dict[str, Any]) -> ModuleType:
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        known = " or ".join(map(repr, ARCHITECTURES))
        raise ConfigError(
            f"{folder / CONFIG}: model_type is {kind!r}, expected {known}."
        )
    return ARCHITECTURES[kind]


def _check_tensors(found: Description) -> None:
    """Raises where needed tensors are absent, or are no floating-point matrices."""
    pairs = found.pairs()
    missing = [pair.theirs for pair in pairs if pair.theirs not in found.stored]
    if missing:
        names_there = ", ".join(sorted(found.stored)[:4])
        raise ConfigError(
            f"{found.folder}: {len(missing)} tensors of config.json's model are not in "
            f"its files: {', '.join(missing[:5])}{', ...' if missing[5:] else ''}; "
            f"the files hold {names_there}, ..."
        )
    wrong = []
    for pair in pairs:
        tensor = found.stored[pair.theirs]
        if (
            pair.dims() not in (None, len(tensor.shape))
            or tensor.dtype.kind not in "fV"
        ):
            wrong.append(f"{pair.theirs} {tensor.dtype.name}{list(tensor.shape)}")
    if wrong:
        raise ConfigError(f"{found.folder}: unexpected {', '.join(wrong[:5])}.")


def _shown(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)


def write(
    folder: pathlib.Path, model: Any, *, dtype_name: str, max_length: int
) -> None:
    """Writes the `config.json` that transformers makes its model from.

    Raises:
      ConfigError: no architecture there expresses the model.
    """
    architecture = of_model(model)
    made = architecture.settings_of(model)
    values = {
        "architectures": [architecture.ARCHITECTURE],
        "model_type": architecture.MODEL_TYPE,
        "vocab_size": made["vocab_size"],
        **architecture.config(made, max_length=max_length),
        "tie_word_embeddings": made["tie_embeddings"],
        "bos_token_id": None,
        "eos_token_id": model.separator_id,
        "pad_token_id": None,
        "dtype": dtype_name,
        "torch_dtype": dtype_name,  # its name before transformers 5
    }
    text = json.dumps(values, indent=2) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")


def of_model(model: Any) -> ModuleType:
    """The architecture that expresses `model`.

    Raises:
      ConfigError: none does; tells why.
    """
    for architecture in ARCHITECTURES.values():
        if isinstance(model, architecture.MODEL):
            if problems := architecture.unfit(model):
                raise ConfigError(
                    f"{type(model).__name__} with {', '.join(problems)} is no "
                    f"{architecture.ARCHITECTURE}: it cannot be exported."
                )
            return architecture
    known = " or a ".join(a.MODEL.__name__ for a in ARCHITECTURES.values())
    raise ConfigError(
        f"a {type(model).__name__} cannot be exported; expected a {known}."
    )
