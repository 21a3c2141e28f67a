"""Settings of other programs, read and said again as an experiment of ours."""
