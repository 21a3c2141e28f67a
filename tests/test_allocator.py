"""The restart under another allocator setting: once, same command, same process."""

import os
import subprocess
import sys

import pytest

from roxxel import allocator

SCRIPT = """
import os, sys
print(os.getpid(), sys.argv[1:], flush=True)
from roxxel import allocator
allocator.restart_with_kept_memory()
print(os.environ.get(allocator.VARIABLE))
"""


def run(env):
    environment = {k: v for k, v in os.environ.items() if k != allocator.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "a b", "--c=d"],
        env=environment | env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's tunables")
def test_restarts_once_as_the_same_process_with_the_same_arguments():
    before, after, setting = run({})
    assert before == after
    assert before.endswith("['a b', '--c=d']")
    assert setting == allocator.TUNABLES


def test_a_setting_of_the_user_is_left_alone():
    started, setting = run({allocator.VARIABLE: "glibc.malloc.hugetlb=0"})
    assert setting == "glibc.malloc.hugetlb=0"
    assert started
