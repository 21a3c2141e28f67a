"""Eight CPU devices in the test process; subprocesses start with their own defaults."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")

# A shell's background job or nohup starts with these ignored, and children inherit it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

import jax

# A config value, not XLA_FLAGS: the environment would leak into every subprocess.
jax.config.update("jax_num_cpu_devices", 8)

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope="session")
def repo_root() -> pathlib.Path:
    return ROOT


@pytest.fixture
def run_python(tmp_path):
    """Runs `python ARGS...` as a user would, from `cwd`, with this tree importable."""

    def run(*args, cwd=tmp_path, env=None, timeout=240, check=False):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
        environment |= env or {}
        return subprocess.run(
            [sys.executable, *map(str, args)],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
        )

    return run
