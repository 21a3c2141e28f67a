"""Which data sets of a run are there, and what they hold."""

from roxxel.config import abstract
from roxxel.dataset import Roxxel


def data(values: abstract.Values) -> str:
    """A line for each data set: sizes and fingerprint, or that it is not built yet."""
    rows = {path: _found(dataset) for path, dataset in values.datasets.items()}
    rows |= dict.fromkeys(
        values.unbuilt, "not built yet; the first training run builds it"
    )
    if not rows:
        return ""
    width = max(len(path) for path in rows)
    lines = [f"  {path:<{width}}  {rows[path]}" for path in sorted(rows)]
    return "\n".join(["data", *lines])


def _found(dataset: Roxxel) -> str:
    tokenizer = dataset.metadata.get("tokenizer")
    parts = [
        f"{dataset.num_elements:,} elements of {dataset.dtype.name}",
        f"{len(dataset.shards)} shard(s)",
        f"fingerprint {dataset.fingerprint()}",
    ]
    if tokenizer:
        facts = tokenizer.values() if isinstance(tokenizer, dict) else [tokenizer]
        parts.append(f"tokenizer {' '.join(map(str, facts))}")
    if not dataset.is_complete:
        parts.append("INCOMPLETE: shards are missing or a write did not finish")
    return ", ".join(parts)
