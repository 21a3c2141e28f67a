"""The experiments of this repository, one a file, each a function named like its file.

`--fdl_config=NAME` or `--fdl_config=experiments.NAME` finds them by their
`@roxxel.experiment` decorator. Importing this package imports none of them: a name is
loaded on first use, so a list of the experiments costs nothing.
"""

from roxxel.config import discover

__getattr__ = discover.lazy_getattr(__name__)


def __dir__() -> list[str]:
    return discover.names(__name__)
