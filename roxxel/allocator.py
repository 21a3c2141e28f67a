"""The C allocator, set for training on CPU.

A training step makes and frees tens of large temporaries. glibc gives each back to the
kernel, which zeroes and maps its pages again in the next step: a fifth of the CPU time
of a small step (docs/performance.md). Kept memory and huge pages avoid that.
"""

import os
import sys

VARIABLE = "GLIBC_TUNABLES"
# One heap for all threads, for all sizes, never given back, of huge pages. glibc reads
# these when a process starts, and ignores those that it does not know.
TUNABLES = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:"
    "glibc.malloc.arena_max=1:glibc.malloc.trim_threshold=2147483647"
)


def restart_with_kept_memory() -> None:
    """Starts this very command again, once, with the allocator set; on Linux only.

    The process keeps its id and its open files. Where GLIBC_TUNABLES is set already
    (by the user, or by this function), nothing happens.
    """
    if sys.platform != "linux" or VARIABLE in os.environ or not sys.executable:
        return
    environment = os.environ | {VARIABLE: TUNABLES}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
