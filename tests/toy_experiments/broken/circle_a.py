"""Imports its importer."""

from toy_experiments.broken.circle_b import b

a = b
