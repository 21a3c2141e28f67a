"""A stand-in for `gcloud compute tpus` that keeps its slices in folders here.

Every call is a line of `calls.jsonl`. A worker is a folder; a command for all workers
runs in all of them at once, each told its number as the TPU's own metadata would do. A
queued resource is ACTIVE when it is looked at for the third time.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

WORKERS = 2  # of each slice
STUB = f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {{root!r}})\n"
STUB += "from tests import gcloud_stub\nsys.exit(gcloud_stub.main())\n"
# Nothing is installed; everything else is this interpreter.
PYTHON = '#!/bin/sh\nif [ "$2" = pip ]; then echo "$@" >pip; exit 0; fi\nexec {} "$@"\n'


def install(folder: pathlib.Path, root: pathlib.Path) -> dict[str, str]:
    """Puts the stand-in and a `python3` into `folder`; the environment to use them."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    (programs / "gcloud").write_text(STUB.format(root=str(root)))
    (programs / "python3").write_text(PYTHON.format(sys.executable))
    for path in programs.iterdir():
        path.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return os.environ | {
        "PATH": path,
        "GCLOUD_STUB": str(folder),
        "TPU_VM_POLL_SECS": "0",
    }


def calls(folder: pathlib.Path) -> list[list[str]]:
    """The command lines so far."""
    path = folder / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def make(folder: pathlib.Path, names: list[str], source: pathlib.Path) -> None:
    """Slices that are there, with the code of `source`, without a call."""
    looks = {"names": names, "looks": 2}
    (folder / f"{names[0].removesuffix('-0')}.json").write_text(json.dumps(looks))
    for name in names:
        for worker in range(WORKERS):
            shutil.copytree(source, folder / name / str(worker) / "roxxel")


def main() -> int:
    words, folder = sys.argv[1:], pathlib.Path(os.environ["GCLOUD_STUB"])
    with open(folder / "calls.jsonl", "a") as file:
        file.write(json.dumps(words) + "\n")
    assert words[:2] == ["compute", "tpus"], words
    kind, verb, *others = words[2:]
    names = [word for word in others if not word.startswith("--")]
    flags = dict(w[2:].partition("=")[::2] for w in others if w.startswith("--"))
    assert flags["zone"] == "z"
    if kind == "queued-resources":
        return _resource(folder / f"{names[0]}.json", verb, flags)
    assert flags["worker"] == "all"
    if verb == "scp":
        return _copy(folder, names)
    return _everywhere(folder / names[0], flags["command"])


def _resource(path: pathlib.Path, verb: str, flags: dict[str, str]) -> int:
    if verb == "create":
        count = int(flags.get("node-count", 1))
        name = flags.get("node-id") or flags["node-prefix"]
        names = [name] if count == 1 else [f"{name}-{i}" for i in range(count)]
        for node in names:
            for worker in range(WORKERS):
                (path.parent / node / str(worker)).mkdir(parents=True)
        path.write_text(json.dumps({"names": names, "looks": 0}))
        return 0
    if not path.exists():
        sys.stderr.write("ERROR: (gcloud) NOT_FOUND\n")
        return 1
    found = json.loads(path.read_text())
    if verb == "delete":
        for node in found["names"]:
            shutil.rmtree(path.parent / node)
        path.unlink()
    elif "nodeCount" in flags["format"]:
        print(len(found["names"]) if len(found["names"]) > 1 else "")
    else:
        path.write_text(json.dumps(found | {"looks": found["looks"] + 1}))
        print("ACTIVE" if found["looks"] > 1 else "PROVISIONING")
    return 0


def _copy(folder: pathlib.Path, names: list[str]) -> int:
    *sources, target = names
    node, _, inner = target.partition(":")
    for worker in (folder / node).iterdir():
        assert (worker / inner).is_dir(), inner  # scp makes no folder
        for source in map(pathlib.Path, sources):
            if source.is_dir():
                shutil.copytree(
                    source, worker / inner / source.name, dirs_exist_ok=True
                )
            else:
                shutil.copy(source, worker / inner)
    return 0


def _everywhere(node: pathlib.Path, command: str) -> int:
    nodes = sorted(
        p for p in node.parent.iterdir() if p.name.startswith(node.name[:-1])
    )
    nodes = [p for p in nodes if p.is_dir()]
    running = []
    for worker in sorted(node.iterdir()):
        number = nodes.index(node) * WORKERS + int(worker.name)
        env = os.environ | {
            "ROXXEL_COORDINATOR": "127.0.0.1:1",
            "ROXXEL_NUM_PROCESSES": str(len(nodes) * WORKERS),
            "ROXXEL_PROCESS_ID": str(number),
        }
        run = ["bash", "-c", command]
        running.append(subprocess.Popen(run, cwd=worker, env=env))
    return max(process.wait() for process in running)
