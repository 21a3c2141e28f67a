"""What a run depended on, compared with what a replay would have.

Each difference is one sentence. Those that change or may change the numbers block a
replay; the state of the repository and the host do not, and are named when the numbers
turn out to differ.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roxxel.config import text
from roxxel.config import workdir as workdir_lib

# Variables that say where and with whom to run, and change no number.
_PLACES = ("CACHE", "COORDINATOR", "PROCESS", "WORKER", "LOG", "DUMP", "SKIP", "NAME")
_PLACES += ("TRACEBACK", "VISIBLE", "PLATFORMS")


@dataclasses.dataclass(frozen=True)
class Difference:
    """One ingredient that is not as it was; `blocks` a replay or does not."""

    text: str
    blocks: bool = True


def compare(
    run: Path, recorded: Mapping[str, Any], now: Mapping[str, Any], as_text: str
) -> list[Difference]:
    """What differs, the most telling first.

    Args:
      run: the work directory of the run.
      recorded: its `run.json`.
      now: the same of this process, from `run_info.collect`, with "data".
      as_text: the configuration as it is read today, as flat text.
    """
    found = [
        *_config(run, as_text),
        *_packages(recorded.get("packages", {}), now["packages"]),
        *_value("Python", recorded.get("python"), now["python"]),
        *_environment(recorded.get("environment", {}), now["environment"]),
        *_data(recorded.get("data"), now["data"]),
    ]
    states = [
        *(f"configuration of a resume: {text}" for text in recorded.get("changes", [])),
        *_git(recorded.get("git"), now["git"]),
        *_value("host", recorded.get("host"), now["host"]),
    ]
    return [Difference(text) for text in found] + [
        Difference(text, blocks=False) for text in states
    ]


def devices(recorded: Mapping[str, Any]) -> list[Difference]:
    """Compare the devices with those of the run; starts the backend."""
    import jax

    before = list(recorded.get("devices") or [])
    after = [str(device) for device in jax.devices()]
    kind = recorded.get("device_kind")
    found = []
    if before and before != after:
        was, is_now = _counted(before), _counted(after)
        found.append(f"devices: the run had {was}, here are {is_now}")
    if kind and kind != jax.devices()[0].device_kind:
        found.append(f"device: was {kind}, is {jax.devices()[0].device_kind}")
    return [Difference(text) for text in found]


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} ({names[0]}{', ...' if len(names) > 1 else ''})"


def _config(run: Path, as_text: str) -> list[str]:
    before = workdir_lib.read_text(run)
    if before is None:
        return []
    changes = text.difference(before, as_text)
    return [f"configuration: {change} (the code has changed)" for change in changes]


def _packages(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = [*dict.fromkeys([*before, *after])]
    return [
        f"package {name}: was {before.get(name, 'not there')}, "
        f"is {after.get(name, 'not there')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _environment(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = sorted({*before, *after})
    return [
        f"environment {name}: was {before.get(name, 'not set')!r}, "
        f"is {after.get(name, 'not set')!r}"
        for name in names
        if before.get(name) != after.get(name)
        and not any(place in name for place in _PLACES)
    ]


def _data(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[str]:
    if before is None:
        return []
    found = []
    for path in dict.fromkeys([*before, *after]):
        was, is_now = before.get(path), after.get(path)
        if was is None or is_now is None:
            found.append(f"data {path}: {'was' if is_now is None else 'is'} only there")
            continue
        found += _tokenizer(path, was, is_now)
        difference = _shard_difference(was["shards"], is_now["shards"])
        if difference is None and was["fingerprint"] != is_now["fingerprint"]:
            names = was["fingerprint"], is_now["fingerprint"]
            difference = f"fingerprint was {names[0]}, is {names[1]}"
        if difference is not None:
            found.append(f"data {path}: {difference}")
    return found


def _tokenizer(path: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    if was.get("tokenizer") == now.get("tokenizer"):
        return []
    return [f"tokenizer of {path}: was {was['tokenizer']}, is {now['tokenizer']}"]


def _shard_difference(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
) -> str | None:
    """The first shard that is another one."""
    if len(old) != len(new):
        return f"was {len(old)} shard(s), is {len(new)}"
    for before, after in zip(old, new, strict=True):
        for key in ("checksums", "bytes"):
            if before[key] != after[key]:
                return (
                    f"the shard {after['file']} is another: {key} was {before[key]}, "
                    f"is {after[key]}"
                )
    return None


def _git(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> list[str]:
    if not before or not after:
        return []
    found = _value("git commit", before.get("commit"), after.get("commit"))
    changes = before.get("diff_sha256"), after.get("diff_sha256")
    if changes[0] != changes[1]:
        words = [f"SHA-256 {name[:12]}" if name else "none" for name in changes]
        found.append(f"uncommitted changes: were {words[0]}, are {words[1]}")
    return found


def _value(name: str, was: Any, is_now: Any) -> list[str]:
    if was is None or was == is_now:
        return []
    return [f"{name}: was {was}, is {is_now}"]
