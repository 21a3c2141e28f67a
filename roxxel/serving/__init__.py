"""A model behind an HTTP address: `python -m roxxel.main --mode=serve`."""
