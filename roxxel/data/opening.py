"""From a location to a reader of its shards."""

from absl import logging

from roxxel.data import modes, paths, publish
from roxxel.data.reader import ShardReader
from roxxel.errors import ConfigError


def open_shards(
    location: str | list[str], *, is_checked: bool, drops_behind: bool
) -> ShardReader:
    """The tails of the shards at `location`; an interrupted publication is completed.

    Raises:
        paths.MissingShardsError: There are no shards.
        ShardFormatError: A file is no complete shard, or shards do not go together.
    """
    _finish_interrupted_publishing(location)
    files = paths.find(location)
    if not files:
        raise paths.MissingShardsError(
            f"no shards at {location!r}; write them there with Roxxel.write, or correct"
            " the path."
        )
    shards = modes.read_shards(files)
    if location not in files and not modes.is_complete(shards):
        logging.warning(
            "%s: %d shards of a write that did not finish, or some are missing. To"
            " have all data, give the same items to write again with resume=True, or"
            " write anew with mode='overwrite'.",
            location,
            len(shards),
        )
    filled = [shard for shard in shards if shard.records]
    dtype = (filled or shards)[0].dtype
    return ShardReader(shards, dtype, is_checked=is_checked, drops_behind=drops_behind)


def _finish_interrupted_publishing(location: str | list[str]) -> None:
    try:
        target = paths.write_target(location, numbered=True)
    except ConfigError:  # a list, a folder or a pattern that is only read
        return
    publish.finish_publishing(target)
