"""A dependency that is not there."""

import _nope_dep  # noqa: F401
