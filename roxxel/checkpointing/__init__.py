"""Parts of `roxxel.checkpoint`: files, state, numbering and the interpreter's exit."""
