"""tf.data pipelines, SeqIO tasks and TFDS builders as sources of documents.

Nothing is downloaded or prepared: TFDS builders must have their files.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from roxxel import extras
from roxxel.building import tokens
from roxxel.building.input_files import InputFiles
from roxxel.building.source import Document
from roxxel.errors import ConfigError

try:
    import tensorflow as tf  # pyrefly: ignore
except ImportError as err:
    raise extras.missing("roxxel.building.tfdata", "seqio", err) from err


@dataclasses.dataclass(frozen=True)
class TfPart:
    """Documents of the `tf.data.Dataset` that a function returns."""

    make: Callable[[], Any]
    feature: str | None
    where: str
    size: int = 1

    def documents(self) -> Iterator[Document]:
        """The feature of each element: text, or a 1-D array of token ids.

        Raises:
            ConfigError: The feature is not there or holds something else.
        """
        dataset = self.make()
        if not isinstance(dataset, tf.data.Dataset):
            kind = type(dataset).__name__
            raise ConfigError(f"{self.where}: is {kind}, expected a tf.data.Dataset.")
        _pick(dataset.element_spec, self.feature, self.where)
        values = dataset.map(lambda *x: _pick(_single(x), self.feature, self.where))
        try:
            for number, value in enumerate(values.as_numpy_iterator()):
                yield _document(value, f"{self.where}: element {number}")
        except (tf.errors.DataLossError, tf.errors.NotFoundError) as err:
            reason = _reason(str(err.message))
            raise ConfigError(f"{self.where}: cannot be read: {reason}.") from err


class TfDataSource:
    """Documents of a tf.data pipeline, in its order.

    Args:
        dataset: A `tf.data.Dataset`, or a function that returns it: the same elements
            each time.
        feature: Of each element: a key, or a path of keys such as `meta.text`; None
            takes elements that are tensors.
        key: Names the content in place of a hash of it, for which everything is read
            once more.
        name: Of the builder.
        where: For messages.
    """

    unit = "documents"

    def __init__(
        self,
        dataset: Any,
        *,
        feature: str | None,
        key: str | None = None,
        name: str = "tf_data",
        where: str = "tf.data pipeline",
    ):
        self.name = name
        make = dataset if callable(dataset) else lambda: dataset
        self._part = TfPart(make, feature, where)
        self._key = key

    def key(self) -> dict:
        """The given key, or a hash of the content."""
        if self._key is None:
            self._key = tokens.content_hash(self._part.documents())
        return {"inputs": self._key, "options": {"feature": self._part.feature}}

    def describe(self) -> dict:
        """Which elements, of what."""
        return {"dataset": self._part.where, "feature": self._part.feature}

    def parts(self) -> list[TfPart]:
        """One part: a pipeline has no pieces in order."""
        return [self._part]


def seqio_source(
    task_or_mixture: Any,
    *,
    feature: str = "targets",
    data_split: str = "train",
    seed: int = 0,
    key: str | None = None,
) -> TfDataSource:
    """One epoch of a SeqIO task or mixture, unshuffled and untrimmed.

    A mixture ends, as in SeqIO, where the first of its tasks has no more examples.

    Args:
        task_or_mixture: Its registered name, or the object.
        feature: Such as `targets` or `inputs`.
        data_split: Of the task.
        seed: Of stochastic preprocessors and of sampling from the tasks of a mixture.
        key: As in `TfDataSource`.

    Raises:
        ConfigError: There is no such task, mixture or split.
    """
    try:
        import seqio  # pyrefly: ignore
    except ImportError as err:
        raise extras.missing("roxxel.building.tfdata", "seqio", err) from err
    provider = task_or_mixture
    if isinstance(task_or_mixture, str):
        try:
            provider = seqio.get_mixture_or_task(task_or_mixture)
        except ValueError as err:
            raise ConfigError(
                f"seqio: no task or mixture {task_or_mixture!r} is registered; import "
                "the module that adds it first."
            ) from err
    if data_split not in provider.splits:
        raise ConfigError(
            f"seqio: {provider.name} has no split {data_split!r}; choose with "
            f"data_split= one of {', '.join(map(repr, sorted(provider.splits)))}."
        )
    make = functools.partial(
        provider.get_dataset,
        sequence_length=None,
        split=data_split,
        shuffle=False,
        seed=seed,
        num_epochs=1,
    )
    where = f"seqio {provider.name} {data_split}"
    return TfDataSource(make, feature=feature, key=key, name="seqio", where=where)


class TfdsSource:
    """A split of a prepared TFDS data set, in the order of its files.

    Args:
        name: Of the builder, such as `lm1b:1.1.0`, or a folder with its files.
        data_dir: Where builders have their files; the library's default with None.
        feature: As in `TfDataSource`.
        data_split: A split, or a slice such as `train[:10%]`.

    Raises:
        ConfigError: There are no such files or no such split.
    """

    name = "tfds"
    unit = "documents"

    def __init__(
        self,
        name: str | os.PathLike,
        *,
        data_dir: str | os.PathLike | None = None,
        feature: str = "text",
        data_split: str = "train",
    ):
        self._place = (os.fspath(name), None if data_dir is None else str(data_dir))
        self._feature = feature
        self._split = data_split
        self._builder = _builder(*self._place)
        try:
            self._info = self._builder.info.splits[data_split]
        except (KeyError, ValueError) as err:
            names = ", ".join(map(repr, self._builder.info.splits)) or "none"
            raise ConfigError(
                f"tfds {self._builder.info.full_name}: no split {data_split!r}; choose "
                f"with data_split= one of {names}, or a slice."
            ) from err
        self._files = InputFiles([os.fspath(path) for path in self._info.filepaths])

    def key(self) -> dict:
        """Name and version, and paths, sizes and times of the files."""
        return {
            "inputs": [self._builder.info.full_name, self._files.states],
            "options": {"feature": self._feature, "split": self._split},
        }

    def describe(self) -> dict:
        """Name and version, split, feature, number and size of the files."""
        names = {"dataset": self._builder.info.full_name, "data_split": self._split}
        return names | {"feature": self._feature} | self._files.describe()

    def check_unchanged(self) -> None:
        """Raises ConfigError when a file changed since this was made."""
        self._files.check_unchanged()

    def parts(self) -> list[TfPart]:
        """A part a file, or one for a slice."""
        splits, lengths = [self._split], [self._info.num_examples]
        if self._split in self._builder.info.splits:
            lengths = list(self._info.shard_lengths)
            splits = [
                f"{self._split}[{i}shard:{i + 1}shard]" for i in range(len(lengths))
            ]
        return [self._part(*part) for part in zip(splits, lengths, strict=True)]

    def _part(self, split: str, length: int) -> TfPart:
        make = functools.partial(_tfds_dataset, *self._place, split)
        where = f"tfds {self._builder.info.full_name} {split}"
        return TfPart(make, self._feature, where, length)


def _builder(name: str, data_dir: str | None) -> Any:
    try:
        import tensorflow_datasets as tfds  # pyrefly: ignore
    except ImportError as err:
        raise extras.missing("roxxel.building.tfdata", "seqio", err) from err
    try:
        if os.path.isdir(name):
            return tfds.builder_from_directory(name)
        return tfds.builder(name, data_dir=data_dir, try_gcs=False)
    except (tfds.core.DatasetNotFoundError, OSError, ValueError) as err:
        reason = str(err).strip().partition("\n")[0].rstrip(".")
        raise ConfigError(f"tfds {name}: cannot be opened: {reason}.") from err


def _tfds_dataset(name: str, data_dir: str | None, split: str) -> Any:
    """The examples in the order of the files, read one file at a time."""
    import tensorflow_datasets as tfds  # pyrefly: ignore

    config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    builder = _builder(name, data_dir)
    return builder.as_dataset(split=split, shuffle_files=False, read_config=config)


def _single(elements: tuple) -> Any:
    """What `Dataset.map` gives a function: a tuple is spread over its arguments."""
    return elements[0] if len(elements) == 1 else elements


def _reason(message: str) -> str:
    """An error of an op without the names of node and op around it."""
    return re.sub(r"^\{\{.*?\}\} | \[Op:.*", "", message.partition("\n")[0])


def _pick(element: Any, feature: str | None, where: str) -> Any:
    if feature is None:
        return element
    if isinstance(element, dict) and feature in element:
        return element[feature]
    value = element
    for name in feature.split("."):
        if not isinstance(value, dict) or name not in value:
            names = list(value) if isinstance(value, dict) else []
            there = f"features there: {', '.join(map(repr, names))}"
            if not names:
                there = "elements are no dicts: use feature=None and Dataset.map"
            raise ConfigError(f"{where}: no feature {feature!r}; {there}.")
        value = value[name]
    return value


def _document(value: Any, place: str) -> Document:
    if isinstance(value, bytes):
        try:
            value.decode()
        except UnicodeDecodeError as err:
            raise ConfigError(f"{place}: not UTF-8 text.") from err
        return value
    if not isinstance(value, np.ndarray) or value.ndim != 1:
        kind = f"shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)
        raise ConfigError(
            f"{place}: is {kind:.60}, expected text or a 1-D tensor of token ids."
        )
    return tokens.integers(value, place)
