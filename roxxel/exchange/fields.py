"""Values of a `config.json`, taken one by one; what is wrong with them is collected."""

from typing import Any

_MISSING = object()


class Fields:
    """A `config.json` in reading.

    Attributes:
      problems: what was wrong with the values that were asked for.
    """

    def __init__(self, values: dict[str, Any]):
        self.values = values
        self.problems: list[str] = []

    def size(self, name: str, default: int | None = None) -> int:
        """A positive whole number; needed where there is no default."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.problems.append(f"{name} is {value!r}, expected a size of at least 1")
            return 1
        return value

    def number(self, name: str, default: float) -> float:
        """A positive number."""
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            self.problems.append(f"{name} is {value!r}, expected a positive number")
            return default
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            self.problems.append(f"{name} is {value!r}, expected true or false")
            return default
        return value

    def only(self, name: str, *allowed: Any, why: str) -> None:
        """Adds a problem unless the value is one of those allowed; absent is fine."""
        value = self.values.get(name, _MISSING)
        if value is not _MISSING and not any(value == one for one in allowed):
            expected = " or ".join(map(repr, allowed))
            self.problems.append(f"{name} is {value!r}, expected {expected}: {why}")
