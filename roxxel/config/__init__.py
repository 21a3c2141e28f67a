"""Fiddle config graphs: resolve, override, dump, replay. Only this and main know fiddle."""
