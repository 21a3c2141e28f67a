"""The most memory that a process holds while a state is made, and restored, on a mesh.

Devices of CPU have their memory in the process: a state that lies on eight of them
grows it by the whole state, and by what each device holds beside its share.
"""

import json
import pathlib
import sys

import pytest

from roxxel import allocator

DEVICES = 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the memory"),
]


def test_a_device_never_holds_more_than_its_share_and_a_layer(run_python, tmp_path):
    child = pathlib.Path(__file__).with_name("born_child.py")
    for restored in (0, 1):
        done = run_python(
            child,
            tmp_path,
            env={"JAX_PLATFORMS": "cpu", allocator.VARIABLE: allocator.TUNABLES},
            check=True,
        )
        facts = json.loads(done.stdout.splitlines()[-1])
        assert facts["restored"] == restored
        assert facts["state"] > 300e6
        # Some of it may come to lie on pages that the process had before.
        assert facts["grew"] > 0.9 * facts["state"], facts
        # A restore also holds what Orbax has read and not yet handed over.
        beside = DEVICES * facts["block"] * (1 + restored)
        assert facts["grew"] <= facts["state"] + beside, facts
