"""`--fdl_help`: what an experiment holds and how to change it."""

from roxxel.config import fiddlers, listing, options, resolve, tags, text


def overview(found: resolve.Experiment) -> str:
    """Usage, then each value of the experiment with its type, tags and fiddlers."""
    lines = text.flat(found.config)
    types = text.types_of(found.config)
    rows = []
    for line in lines:
        shown = f": {types[line.path]}" if line.path in types else ""
        marks = f"  # {', '.join(line.marks)}" if line.marks else ""
        rows.append(f"  --fdl.{line.path}={line.value}{shown}{marks}")
    parts = [
        options.usage(),
        f"\n{found.name} ({found.source}) holds, as path=value: type",
        *rows[1:],
        f"\ntags (--fdl_tag.NAME=VALUE): {', '.join(tags.names(found.config)) or '-'}",
        f"fiddlers (--fiddler=NAME): {', '.join(_fiddlers(found.module)) or '-'}",
    ]
    return "\n".join(parts)


def _fiddlers(module: str | None) -> list[str]:
    places = (fiddlers.PACKAGE, module)
    return [name for place in places for name, _ in listing.fiddler_rows(place)]
