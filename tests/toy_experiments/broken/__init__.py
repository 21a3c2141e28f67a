"""Modules that cannot be imported, each in its own way."""
