"""The tables of `docs/coming-from.md`, printed."""

import sys

from roxxel.config.importing.maxtext import MAXTEXT
from roxxel.config.importing.nanogpt import NANOGPT
from roxxel.config.importing.settings import Program, Setting


def table(program: Program) -> str:
    """A row for each setting: theirs, ours, what to know."""
    rows = [f"| {program.name} | default | here | remark |", "|---|---|---|---|"]
    rows += [_row(setting) for setting in program.settings]
    return "\n".join(rows)


def _row(setting: Setting) -> str:
    ours = f"`{setting.ours}`" if setting.ours else "-"
    note = setting.note
    if setting.must_be is not None:
        only = " or ".join(f"`{value!r}`" for value in setting.must_be)
        note = f"only {only}. {note}".strip()
    return f"| `{setting.name}` | `{setting.default!r}` | {ours} | {note} |"


if __name__ == "__main__":
    for one in (MAXTEXT, NANOGPT):
        sys.stdout.write(f"{table(one)}\n\n")
