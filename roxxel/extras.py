"""One line instead of a bare ImportError where an optional dependency is missing."""


def missing(module: str, extra: str, err: ImportError) -> ImportError:
    """The error to raise from `err`: names `module`, what it lacks and the extra."""
    return ImportError(
        f"{module} needs {err.name}: pip install 'roxxel[{extra}]'.", name=err.name
    )
