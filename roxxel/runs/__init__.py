"""Work directories of runs, read back: lists, comparisons, reasons, reports.

`python -m roxxel.runs list DIR | compare RUN... | why RUN... | report RUN... |
serve DIR`.
"""
