"""Files of a tokenizer that lie beside a model's weights."""

import os
import pathlib
import shutil

from roxxel.errors import ConfigError

NAMES = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    "chat_template.jinja",
)


def find(spec: str | os.PathLike) -> list[pathlib.Path]:
    """The files of the tokenizer that a file or a folder names; empty: none."""
    path = pathlib.Path(spec).expanduser()
    folder = path if path.is_dir() else path.parent
    beside = path.is_dir() or path.name in NAMES
    found = [folder / name for name in NAMES] if beside else []
    return [file for file in found if file.is_file()]


def copy(spec: str | os.PathLike, folder: pathlib.Path) -> None:
    """Copies the files of a tokenizer into `folder`.

    Raises:
      ConfigError: there are none.
    """
    files = find(spec)
    if not files:
        raise ConfigError(
            f"tokenizer {os.fspath(spec)!r}: no tokenizer files; expected a folder "
            "with tokenizer.json or tokenizer.model, or such a file."
        )
    for file in files:
        shutil.copyfile(file, folder / file.name)
