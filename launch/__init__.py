"""Starts runs and sweeps as processes; knows only their command lines and files.

Nothing here imports jax or roxxel: a driver stays small however many runs it watches.
"""
