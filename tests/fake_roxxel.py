"""A stand-in for `python -m roxxel.main` that starts at once, for launchers' tests.

Each process of a run does what the words of `--do.INDEX=WORD,WORD` say, in order; those
of `--do` where there are none. Every attempt leaves a line in `attempts.INDEX`.
"""

import pathlib

_MAIN = """
import json, os, pathlib, signal, sys, time

index = os.environ.get("ROXXEL_PROCESS_ID", "0")
flags = dict(word[2:].partition("=")[::2] for word in sys.argv[1:])
log = pathlib.Path(f"attempts.{index}")
attempt = len(log.read_text().splitlines()) if log.exists() else 0
names = ("ROXXEL_COORDINATOR", "ROXXEL_NUM_PROCESSES", "ROXXEL_PROCESS_ID")
names += ("XLA_FLAGS", "JAX_PLATFORMS", "SLURM_LOCALID", "CUDA_VISIBLE_DEVICES")
seen = {n: os.environ[n] for n in names if n in os.environ}
with log.open("a") as file:
    file.write(json.dumps({"argv": sys.argv[1:], "env": seen}) + "\\n")
words = flags.get(f"do.{index}", flags.get("do", "")).split(",")
told = []
signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
for word in words:
    if word.startswith("first:"):  # in the first attempt only
        word = word.removeprefix("first:") if attempt == 0 else ""
    verb, _, value = word.partition(":")
    if verb == "say":
        sys.stdout.write(value + "\\n")  # at once: others write there too
        sys.stdout.flush()
    elif verb == "err":
        sys.stderr.write(value + "\\n")
    elif verb == "part":
        sys.stdout.write(value)
    elif verb == "signal":  # waits to be told
        while not told:
            time.sleep(0.01)
    elif verb == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif verb == "hang":
        while True:
            time.sleep(1)
    elif verb == "nap":
        time.sleep(float(value))
    elif verb == "file":  # waits for one
        while not pathlib.Path(value).exists():
            time.sleep(0.01)
    elif verb == "touch":
        pathlib.Path(value).touch()
    elif verb == "kill":
        os.kill(os.getpid(), int(value))
    elif verb == "codes":  # one for each attempt
        sys.exit(int(value.split("/")[attempt]))
    elif verb == "exit":
        sys.exit(int(value))
"""


def install(folder: pathlib.Path) -> None:
    """Makes `python -m roxxel.main`, started in `folder`, be the stand-in."""
    package = folder / "roxxel"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "main.py").write_text(_MAIN)
