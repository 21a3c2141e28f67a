"""The Fiddle side of roxxel: from a command line to a checked graph of a run.

Only this package and `roxxel.main` know fiddle; the library below takes plain values.
"""
