"""The keywords of JSON Schema that the JobSet schema uses, checked."""

import re
from typing import Any

_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool}
_KNOWN = {"type", "properties", "required", "additionalProperties", "items", "enum"}
_KNOWN |= {"pattern", "minLength", "maxLength", "minItems", "maxItems", "minimum"}
_KNOWN |= {"format", "default", "$schema", "x-kubernetes-int-or-string"}


def violations(value: Any, schema: dict[str, Any], at: str = "$") -> list[str]:
    """What in `value` the schema refuses, a line each."""
    found = [
        f"{at}: keyword {key}"
        for key in schema
        if key not in _KNOWN and not key.startswith("x-kubernetes")
    ]
    if "type" in schema and not _is_a(value, schema["type"]):
        return [*found, f"{at}: {value!r} is no {schema['type']}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    if isinstance(value, dict):
        found += _object(value, schema, at)
    elif isinstance(value, list):
        found += _sized(len(value), schema, "Items", at)
        for i, item in enumerate(value):
            found += violations(item, schema.get("items", {}), f"{at}[{i}]")
    elif isinstance(value, str):
        found += _sized(len(value), schema, "Length", at)
        if "pattern" in schema and not re.search(schema["pattern"], value):
            found.append(f"{at}: {value!r} is not {schema['pattern']}")
    elif not isinstance(value, bool | None) and value < schema.get("minimum", value):
        found.append(f"{at}: {value} is below {schema['minimum']}")
    return found


def _object(value: dict, schema: dict[str, Any], at: str) -> list[str]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    found = [f"{at}: {key} is missing" for key in schema.get("required", ())]
    found = [line for line in found if line.split()[1] not in value]
    for key, item in value.items():
        if key in known:
            found += violations(item, known[key], f"{at}.{key}")
        elif others is False:
            found.append(f"{at}: {key} is unknown")
        elif isinstance(others, dict):
            found += violations(item, others, f"{at}.{key}")
    return found


def _is_a(value: Any, name: str | list[str]) -> bool:
    if isinstance(name, list):
        return any(_is_a(value, one) for one in name)
    if name in ("integer", "number"):
        kinds = int if name == "integer" else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool)
    return isinstance(value, _TYPES[name])


def _sized(size: int, schema: dict[str, Any], of: str, at: str) -> list[str]:
    least, most = schema.get(f"min{of}", size), schema.get(f"max{of}", size)
    return [] if least <= size <= most else [f"{at}: size {size} is not allowed"]
