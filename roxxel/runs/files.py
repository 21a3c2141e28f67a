"""Files of a run's folder, which somebody else may have made."""

import pathlib

MOST_BYTES = 4_000_000  # of a text or JSON


def is_safe(path: pathlib.Path) -> bool:
    """Whether a file is one of the run's own, to be read to its end.

    Pipes and devices need not have one, and a link may bring a file into a report that
    is none of the run's.
    """
    return path.is_file() and not path.is_symlink()


def text(path: pathlib.Path, most: int = MOST_BYTES) -> str:
    """The first `most` bytes of a file, or the last `-most`; "" where there is none."""
    try:
        if not is_safe(path):
            return ""
        with open(path, "rb") as file:
            if most < 0:
                file.seek(max(0, path.stat().st_size + most))
            return file.read(abs(most)).decode("utf-8", "replace")
    except OSError:
        return ""
