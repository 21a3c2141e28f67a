"""Continuing a write that was cut off: the items come again, what is stored is skipped.

The rule: the caller gives the same items and the same arguments again. They are packed
as before, but what falls into a finished shard is summed instead of written, and the
sums must be those of the shard; then the write goes on exactly where it was cut off,
in the middle of a document if need be. Whatever differs is refused.
"""

import json

from roxxel.data import extension_format, paths, rox_format
from roxxel.errors import ConfigError


def check_shards(shards: list[rox_format.Shard], target: paths.Target) -> None:
    """Refuses shards that are not the first ones of one unfinished write.

    Raises:
        ConfigError: Names the shard and why nothing can be continued there.
    """
    for number, shard in enumerate(shards):
        if shard.path != target.path(number):
            raise ConfigError(
                f"cannot resume: shard {number} is {shard.path}, expected"
                f" {target.path(number)}; write again with mode='overwrite'."
            )
        if "sums" not in shard.extension:
            raise ConfigError(
                f"cannot resume: {shard.path} has no checksums, so whether the items"
                " are the same cannot be known; write again with mode='overwrite'."
            )


def check_same(shard: rox_format.Shard, facts: dict) -> None:
    """Refuses items that would make another shard than the one that is there.

    Args:
        shard: A finished shard of the write that was cut off.
        facts: The extension that the items give now, without its sections.

    Raises:
        ConfigError: Names the shard and the first difference.
    """
    for name in dict.fromkeys([*facts, *extension_format.PROVENANCE]):
        now = facts.get(name)
        stored = shard.extension.get(name)
        if name == "sums" or _plain(stored) == _plain(now):
            continue
        raise ConfigError(
            f"cannot resume: {name} of {shard.path} is {stored!r:.80}, the items and"
            f" arguments give {now!r:.80} now; give the same ones again or use"
            " mode='overwrite'."
        )
    if shard.extension["sums"] != facts["sums"]:
        raise ConfigError(
            f"cannot resume: the items give other elements than {shard.path} holds;"
            " give the same items again or use mode='overwrite'."
        )


def _plain(value) -> str:
    return json.dumps(value, sort_keys=True)  # tuples become lists, nan is nan
