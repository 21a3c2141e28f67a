"""Imports its importer."""

from toy_experiments.broken.circle_a import a

b = a
