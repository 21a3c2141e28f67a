"""A graph drawn as a tree in SVG, and a page around a drawing. Nothing is fetched."""

import html

from roxxel.config import tree

ROW_PX, INDENT_PX, MARGIN_PX, CHAR_PX = 20, 22, 12, 7.3
MAX_LABEL_CHARS = 110
_STYLE = (
    "text{font:12px ui-monospace,monospace;fill:#222}"
    ".node{font-weight:bold}.default{fill:#888}.shared{fill:#0a58a8}"
    "path{fill:none;stroke:#aaa}path.shared{stroke:#0a58a8;stroke-dasharray:4 3}"
)


def drawing(title: str, rows: list[tree.Row]) -> str:
    """SVG of the rows as a tree; dashed lines lead to nodes that are shared."""
    labels = [_label(row) for row in rows]
    widths = [
        row.depth * INDENT_PX + len(label) * CHAR_PX
        for row, label in zip(rows, labels, strict=True)
    ]
    loops = [row for row in rows if row.shared is not None]
    width = max(widths) + 2 * MARGIN_PX + 12 * (len(loops) + 1)
    height = len(rows) * ROW_PX + 2 * MARGIN_PX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
        f'height="{height}" viewBox="0 0 {width:.0f} {height}">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>",
        *_elbows(rows),
        *_loops(rows, widths, max(widths)),
        *(_text(index, row, label) for index, (row, label) in _each(rows, labels)),
        "</svg>",
    ]
    return "\n".join(parts)


def page(title: str, svg: str) -> str:
    """An HTML page that holds a drawing."""
    start = svg.find("<svg")  # Graphviz writes an XML declaration before it
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title></head>\n<body>\n"
        f"<h1>{html.escape(title)}</h1>\n{svg[max(0, start) :]}\n</body></html>"
    )


def _each(rows: list[tree.Row], labels: list[str]):
    return enumerate(zip(rows, labels, strict=True))


def _label(row: tree.Row) -> str:
    label = row.label
    return (
        label if len(label) <= MAX_LABEL_CHARS else f"{label[: MAX_LABEL_CHARS - 3]}..."
    )


def _x(row: tree.Row) -> int:
    return MARGIN_PX + row.depth * INDENT_PX


def _y(index: int) -> int:
    return MARGIN_PX + index * ROW_PX + ROW_PX // 2


def _text(index: int, row: tree.Row, label: str) -> str:
    kind = "node" if row.is_node else "default" if "default" in row.marks else "value"
    kind = "shared" if row.shared is not None else kind
    tip = html.escape(f"{row.path or tree.ROOT} = {row.value}")
    return (
        f'<text class="{kind}" x="{_x(row)}" y="{_y(index) + 4}">'
        f"{html.escape(label)}<title>{tip}</title></text>"
    )


def _elbows(rows: list[tree.Row]) -> list[str]:
    """Lines from each row to its parent."""
    above: list[int] = []
    lines = []
    for index, row in enumerate(rows):
        del above[row.depth :]
        if above:
            x, top = _x(row) - INDENT_PX // 2 - 4, _y(above[-1]) + 7
            lines.append(f'<path d="M{x} {top}V{_y(index)}h9"/>')
        above.append(index)
    return lines


def _loops(rows: list[tree.Row], widths: list[float], most: float) -> list[str]:
    """Dashed lines from each shared place to where the node is shown."""
    places = {row.path or tree.ROOT: index for index, row in enumerate(rows)}
    lines, lane = [], 0
    for index, row in enumerate(rows):
        home = places.get(row.shared or "")
        if row.shared is None or home is None:
            continue
        lane += 1
        x = MARGIN_PX + most + 12 * lane
        begin, end = (MARGIN_PX + widths[i] + 6 for i in (index, home))
        d = f"M{begin:.0f} {_y(index)}H{x:.0f}V{_y(home)}H{end:.0f}"
        lines.append(f'<path class="shared" d="{d}"/>')
    return lines
