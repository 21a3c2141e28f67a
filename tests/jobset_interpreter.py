"""Runs a JobSet on this machine, as far as launching runs needs one.

Honours replicas, completions, env (values, and labels by fieldRef), exit codes,
podFailurePolicy, failurePolicy with its restarts, and the grace period.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from typing import Any

_INDEX = "metadata.labels['jobset.sigs.k8s.io/job-index']"
_SECS = 120


class Interpreter:
    """One JobSet; `run` gives how it ended.

    Attributes:
      restarts: how often all pods were started again.
      codes: exit codes of each attempt, by (job, pod).
    """

    def __init__(self, jobset: dict[str, Any], cwd: pathlib.Path):
        self.name, self.spec, self.cwd = jobset["metadata"]["name"], jobset["spec"], cwd
        self.restarts = 0
        self.codes: list[dict[tuple[str, int], int]] = []

    def run(self) -> str:
        """Completed or Failed."""
        while True:
            failed = self._attempt()
            if failed is None:
                return "Completed"
            policy = self.spec["failurePolicy"]
            if self._action(policy, reason=failed) == "FailJobSet":
                return "Failed"
            if self.restarts == policy["maxRestarts"]:
                return "Failed"
            self.restarts += 1

    def _action(self, policy: dict[str, Any], reason: str) -> str:
        for rule in policy["rules"]:
            if reason in rule.get("onJobFailureReasons", [reason]):
                return rule["action"]
        return "RestartJobSet"

    def _attempt(self) -> str | None:
        """Starts all pods; the reason of the first job that failed, None for none."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        pods = {
            (f"{job['name']}-{replica}", pod): self._start(job, replica, pod)
            for job in self.spec["replicatedJobs"]
            for replica in range(job["replicas"])
            for pod in range(job["template"]["spec"]["completions"])
        }
        reason = self._wait(pods)
        self.codes.append({key: pod.returncode for key, pod in pods.items()})
        return reason

    def _start(self, job: dict[str, Any], replica: int, pod: int) -> subprocess.Popen:
        spec = job["template"]["spec"]
        assert spec["completionMode"] == "Indexed"
        assert spec["parallelism"] == spec["completions"]
        assert spec["backoffLimit"] == 0
        (container,) = spec["template"]["spec"]["containers"]
        env = {"JOB_COMPLETION_INDEX": str(pod)}
        for entry in container["env"]:
            field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            assert field in (None, _INDEX)
            env[entry["name"]] = str(replica) if field else entry["value"]
        first = f"{self.name}-{job['name']}-0-0.{self.name}:"  # its name in the DNS
        coordinator = env["ROXXEL_COORDINATOR"]
        assert coordinator.startswith(first)
        assert int(coordinator.removeprefix(first)) in [
            port["containerPort"] for port in container["ports"]
        ]
        env["ROXXEL_COORDINATOR"] = f"127.0.0.1:{self._port}"
        command = [
            sys.executable if w == "python3" else w for w in container["command"]
        ]
        return subprocess.Popen(command, cwd=self.cwd, env=os.environ | env)

    def _wait(self, pods: dict[tuple[str, int], subprocess.Popen]) -> str | None:
        until = time.monotonic() + _SECS
        while any(pod.poll() is None for pod in pods.values()):
            assert time.monotonic() < until, "the pods do not end"
            if any(pod.poll() not in (None, 0) for pod in pods.values()):
                break
            time.sleep(0.02)
        failed = [
            (key, pod) for key, pod in pods.items() if pod.poll() not in (None, 0)
        ]
        if not failed:
            return None
        (job_name, _), pod = failed[0]
        self._delete([pod for pod in pods.values() if pod.poll() is None])
        job = next(
            job
            for job in self.spec["replicatedJobs"]
            if job_name.startswith(f"{job['name']}-")
        )
        code = pod.returncode
        return _reason(job["template"]["spec"], 128 - code if code < 0 else code)

    def _delete(self, pods: list[subprocess.Popen]) -> None:
        """As the Job controller does with the other pods of a job that failed."""
        job = self.spec["replicatedJobs"][0]["template"]["spec"]
        grace = job["template"]["spec"]["terminationGracePeriodSeconds"]
        for pod in pods:
            pod.send_signal(signal.SIGTERM)
        until = time.monotonic() + min(grace, _SECS)
        for pod in pods:
            try:
                pod.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                pod.kill()
                pod.wait()


def _reason(job: dict[str, Any], code: int) -> str:
    for rule in job["podFailurePolicy"]["rules"]:
        wanted = rule["onExitCodes"]
        assert wanted["operator"] == "In"
        if code in wanted["values"] and rule["action"] == "FailJob":
            return "PodFailurePolicy"
    return "BackoffLimitExceeded"
