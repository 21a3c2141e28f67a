"""Work directories of runs, read back: lists, comparisons, reports.

`python -m roxxel.runs list DIR | compare RUN... | report RUN... | serve DIR`.
"""
