"""Arrays that a checkpoint holds against arrays that the model has: by name, no jax.

An array is described as `[dtype, shape]`.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Names in a checkpoint against names wanted; the lists read as sentences."""

    matching: list[str]
    missing: list[str]  # wanted, not in the checkpoint
    extra: list[str]  # in the checkpoint, not wanted
    different: list[str]  # in both, with another shape or dtype

    @property
    def complete(self) -> bool:
        """Nothing is missing, extra or different."""
        return not (self.missing or self.extra or self.different)

    def __str__(self):
        parts = [
            f"{title} ({len(names)}): {', '.join(names)}"
            for title, names in (
                ("missing in the checkpoint", self.missing),
                ("extra in the checkpoint", self.extra),
                ("different", self.different),
            )
            if names
        ]
        return "; ".join(parts) or f"all {len(self.matching)} arrays match"


def compare(wanted: dict[str, list], stored: dict[str, list]) -> Comparison:
    """Compares descriptions (`describe`) of the wanted arrays with the stored ones."""
    both = [name for name in wanted if name in stored]
    return Comparison(
        matching=[name for name in both if wanted[name] == stored[name]],
        missing=[name for name in wanted if name not in stored],
        extra=[name for name in stored if name not in wanted],
        different=[
            f"{name} (checkpoint {_text(stored[name])}, model {_text(wanted[name])})"
            for name in both
            if wanted[name] != stored[name]
        ],
    )


def _text(description: list) -> str:
    dtype, shape = description
    return f"{dtype}[{','.join(map(str, shape))}]"
