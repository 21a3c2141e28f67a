"""A graph in the language of Graphviz: a box a node, its plain values inside."""

from roxxel.config import tree

MAX_VALUE_CHARS = 48


def source(rows: list[tree.Row]) -> str:
    """DOT source; a shared node is one box with several arrows to it."""
    boxes: dict[str, list[str]] = {}
    arrows: list[tuple[str, str, str]] = []
    parents: list[str] = []
    for row in rows:
        del parents[row.depth :]
        parent = parents[-1] if parents else None
        target = row.path if row.shared is None else row.shared
        if row.is_node:
            if row.shared is None:
                boxes[row.path] = [row.value[1:-1]]
            if parent is not None:
                arrows.append((parent, target.removeprefix(tree.ROOT), row.name))
            parents.append(row.path)
        elif parent is not None and "default" not in row.marks:
            boxes[parent].append(f"{row.name} = {_cut(row.value)}")
        else:
            parents.append(parents[-1] if parents else row.path)
    return "\n".join(_lines(boxes, arrows))


def _lines(
    boxes: dict[str, list[str]], arrows: list[tuple[str, str, str]]
) -> list[str]:
    lines = [
        "digraph config {",
        '  node [shape=box, style=rounded, fontname="sans-serif", fontsize=10];',
        '  edge [fontname="sans-serif", fontsize=9];',
        "  rankdir=LR;",
    ]
    for path, texts in boxes.items():
        label = "".join(f"{_escaped(text)}\\l" for text in texts)
        lines.append(f'  "{_escaped(path)}" [label="{label}"];')
    for parent, child, name in arrows:
        if child in boxes:
            ends = f'"{_escaped(parent)}" -> "{_escaped(child)}"'
            lines.append(f'  {ends} [label="{_escaped(name)}"];')
    return [*lines, "}"]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 3]}..."


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
