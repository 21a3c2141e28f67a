"""Raises."""


def _fail():
    raise RuntimeError("no luck at import")


_fail()
