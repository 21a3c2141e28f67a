"""A run on Kubernetes, as a JobSet: `python -m launch.jobset`.

    python -m launch.jobset --name=two --image=REPO/roxxel:1 --tpu=v5e:4x4 --slices=2 \\
        --volume=runs:/runs -- --fdl_config=experiments.ssm_small --workdir=/runs/two
    python -m launch.jobset --name=two --image=REPO/roxxel:1 --nodes=2 \\
        --gpu=nvidia-h100-80gb:8 --queue=research --volume=runs:/runs -- ...

`--dry_run` prints the YAML; without it the YAML goes to `kubectl apply`. Applying it
again changes nothing.

Exit codes 2 (wrong configuration) and 3 (diverged) fail the JobSet at once. Any other
failure starts all pods again, at most `--restarts` times: 42 (stopped after saving), a
lost node, and the errors of the processes that lost a peer.

JobSet: https://jobset.sigs.k8s.io; queues: https://kueue.sigs.k8s.io.
"""

import argparse
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from launch import yaml_text
from launch.line import LaunchError, Parser, number, say
from launch.problems import EXIT_CONFIG, EXIT_DIVERGED, EXIT_OK

_PORT = 8471
_JOB = "worker"  # name of the replicated job; pods are NAME-worker-JOB-POD
_CONTAINER = "train"
_INDEX_LABEL = "metadata.labels['jobset.sigs.k8s.io/job-index']"
_NODE_POOL = {
    "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
}
# Names of GKE's node label; all have four chips on a host of a larger slice.
_TPUS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
}
_CHIPS_PER_HOST = 4
# The process learns its number over all slices before it starts.
_ENTRY = (
    "export ROXXEL_PROCESS_ID=$((JOB_INDEX * PODS_PER_JOB + JOB_COMPLETION_INDEX)); "
    'exec "$@"'
)
_DNS_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


def render(given: argparse.Namespace, words: Sequence[str]) -> dict[str, Any]:
    """The JobSet of a parsed command line, as plain values.

    Raises:
      LaunchError: flags that do not go together, or a work directory that a restart
        would not find again.
    """
    jobs, pods, place = _shape(given)
    _check(given, words)
    metadata: dict[str, Any] = {"name": given.name}
    if given.namespace:
        metadata["namespace"] = given.namespace
    if given.queue:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": given.queue}
    if given.tpu:
        metadata["annotations"] = _NODE_POOL
    job = {
        "name": _JOB,
        "replicas": jobs,
        "template": {"spec": _job(given, words, jobs, pods, place)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "failurePolicy": {
                "maxRestarts": given.restarts,
                "rules": [
                    {
                        "name": "wrongOrDiverged",
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": [job],
        },
    }


def _job(given, words, jobs: int, pods: int, place: dict[str, Any]) -> dict[str, Any]:
    """One slice, or all nodes with GPUs: its pods start, fail and end together."""
    return {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": _CONTAINER,
                        "operator": "In",
                        "values": [EXIT_CONFIG, EXIT_DIVERGED],
                    },
                }
            ]
        },
        "template": {
            "spec": {
                "restartPolicy": "Never",
                # Else the run were process 1, to which a SIGTERM before it listens is
                # none at all.
                "shareProcessNamespace": True,
                "terminationGracePeriodSeconds": given.grace_secs,
                **({"nodeSelector": place["nodes"]} if place["nodes"] else {}),
                "containers": [_container(given, words, jobs, pods, place)],
                "volumes": _volumes(given),
            }
        },
    }


def _container(given, words, jobs: int, pods: int, place) -> dict[str, Any]:
    joined = {
        "ROXXEL_COORDINATOR": f"{given.name}-{_JOB}-0-0.{given.name}:{_PORT}",
        "ROXXEL_NUM_PROCESSES": str(jobs * pods),
        "PODS_PER_JOB": str(pods),
        "PYTHONUNBUFFERED": "1",
    }
    env: list[dict[str, Any]] = [
        {"name": "JOB_INDEX", "valueFrom": {"fieldRef": {"fieldPath": _INDEX_LABEL}}}
    ]
    env += [{"name": name, "value": value} for name, value in joined.items()]
    env += [dict(zip(("name", "value"), e, strict=True)) for e in given.env]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    if given.volume:
        mounts.append({"name": "runs", "mountPath": given.volume[1]})
    run = ["python3", "-m", "roxxel.main", *words]
    container = {
        "name": _CONTAINER,
        "image": given.image,
        "command": ["sh", "-c", _ENTRY, "sh", *run],
        "env": env,
        "ports": [{"containerPort": _PORT}],
        "volumeMounts": mounts,
    }
    if place["limits"]:
        container["resources"] = {"limits": place["limits"]}
    return container


def _volumes(given) -> list[dict[str, Any]]:
    # NCCL and data workers share memory; a container's own 64 MB are too few.
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if given.volume:
        claim = {"claimName": given.volume[0]}
        volumes.append({"name": "runs", "persistentVolumeClaim": claim})
    return volumes


def _shape(given) -> tuple[int, int, dict[str, Any]]:
    """Jobs, pods of each, and where a pod goes."""
    if given.tpu and (given.gpu or given.nodes):
        raise LaunchError("--tpu excludes --gpu and --nodes; give --slices=N.")
    if given.slices and not given.tpu:
        raise LaunchError("--slices belongs to --tpu=KIND:TOPOLOGY; give --nodes=N.")
    if not given.tpu:
        kind, count = given.gpu or ("", 0)
        nodes = {"cloud.google.com/gke-accelerator": kind} if kind else {}
        limits = {"nvidia.com/gpu": count} if count else {}
        return 1, given.nodes or 1, {"nodes": nodes, "limits": limits}
    kind, topology = given.tpu
    chips = math.prod(map(int, topology.split("x")))
    on_host = min(chips, _CHIPS_PER_HOST)
    nodes = {
        "cloud.google.com/gke-tpu-accelerator": _TPUS[kind],
        "cloud.google.com/gke-tpu-topology": topology,
    }
    place = {"nodes": nodes, "limits": {"google.com/tpu": on_host}}
    return given.slices or 1, chips // on_host, place


def _check(given, words: Sequence[str]) -> None:
    workdirs = [w.partition("=")[2] for w in words if w.startswith("--workdir=")]
    if not workdirs:
        raise LaunchError(
            "no --workdir behind `--`: a pod's own disk does not outlive it; give one "
            "on --volume=CLAIM:/DIR, as in --workdir=/DIR/NAME."
        )
    if given.volume and not f"{workdirs[-1]}/".startswith(f"{given.volume[1]}/"):
        raise LaunchError(
            f"--workdir={workdirs[-1]} does not lie on the volume, which is at "
            f"{given.volume[1]}."
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name); the exit code."""
    try:
        given, words = _parser().parse(sys.argv[1:] if argv is None else argv)
        text = yaml_text.dump(render(given, words))
        if not given.dry_run and shutil.which("kubectl") is None:
            raise LaunchError("kubectl is not there; --dry_run prints the YAML.")
    except LaunchError as err:
        say("jobset", f"error: {err}")
        return EXIT_CONFIG
    if given.dry_run:
        sys.stdout.write(text)
        return EXIT_OK
    command = ["kubectl", "apply", "--filename=-"]
    return subprocess.run(command, input=text, text=True, check=False).returncode


def _parser() -> Parser:
    parser = Parser("launch.jobset", "Starts a run as a JobSet on Kubernetes.")
    add = parser.add_argument
    add("--name", type=_name, required=True)
    add("--image", required=True, help="see launch/Dockerfile")
    add("--tpu", type=_tpu, help="KIND:TOPOLOGY, as v5e:4x4")
    add("--slices", type=number(1, 4096), help="of --tpu; default 1")
    add("--gpu", type=_gpu, help="KIND:COUNT of each node, as nvidia-h100-80gb:8")
    add("--nodes", type=number(1, 4096), help="with --gpu or without; default 1")
    add("--volume", type=_volume, help="CLAIM:/DIR that all pods share")
    add("--namespace")
    add("--queue", help="local queue of Kueue")
    add("--grace_secs", type=number(1), default=120, help="from SIGTERM to SIGKILL")
    add("--restarts", type=number(0), default=100, help="at most so many")
    add("--env", type=_variable, action="append", default=[], help="NAME=VALUE")
    return parser


def _name(text: str) -> str:
    if not _DNS_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"expected up to 40 of a-z, 0-9 and -, a letter first, got {text!r}"
        )
    return text


def _tpu(text: str) -> tuple[str, str]:
    kind, _, topology = text.partition(":")
    if kind not in _TPUS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", topology):
        raise argparse.ArgumentTypeError(
            f"expected KIND:TOPOLOGY as v5e:4x4, kinds {', '.join(_TPUS)}, got {text!r}"
        )
    return kind, topology


def _gpu(text: str) -> tuple[str, int]:
    kind, _, count = text.rpartition(":")
    if not kind or not count.isdigit() or not 1 <= int(count) <= 16:
        raise argparse.ArgumentTypeError(
            f"expected KIND:COUNT as nvidia-h100-80gb:8, got {text!r}"
        )
    return kind, int(count)


def _volume(text: str) -> tuple[str, str]:
    claim, _, path = text.partition(":")
    if not claim or not path.startswith("/") or path == "/":
        raise argparse.ArgumentTypeError(f"expected CLAIM:/DIR, got {text!r}")
    return claim, path.rstrip("/")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
