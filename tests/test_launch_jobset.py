"""`python -m launch.jobset`: its YAML by the schema of JobSet, and run here."""

import json
import os
import pathlib

import pytest
import yaml

from launch import jobset, yaml_text
from tests import fake_roxxel, json_schema
from tests.jobset_interpreter import Interpreter

LINE = ["--", "--fdl_config=experiments.ssm_tiny", "--workdir=/runs/two"]
BASE = ["--name=two", "--image=r/roxxel:1", "--volume=runs:/runs"]
TPU = [*BASE, "--tpu=v5e:4x4", "--slices=2"]
GPU = [*BASE, "--gpu=nvidia-h100-80gb:8", "--nodes=2", "--queue=q", "--namespace=n"]


def rendered(capsys, *words, line=LINE):
    assert jobset.main([*words, "--dry_run", *line]) == 0
    return yaml.safe_load(capsys.readouterr().out)


@pytest.mark.parametrize("words", [TPU, GPU, [*BASE, "--env=A=true", "--grace_secs=9"]])
def test_the_yaml_is_a_jobset_by_its_schema(capsys, repo_root, words):
    path = repo_root / "tests/data/jobset-v1alpha2.schema.json"
    schema = json.loads(path.read_text())
    found = rendered(capsys, *words)
    assert json_schema.violations(found, schema) == []
    # What checks is itself checked.
    found["spec"]["replicatedJobs"][0]["template"]["spec"]["completion"] = 1
    found["spec"]["failurePolicy"]["maxRestarts"] = "many"
    assert len(json_schema.violations(found, schema)) == 2


def job_of(found):
    (job,) = found["spec"]["replicatedJobs"]
    return job, job["template"]["spec"], job["template"]["spec"]["template"]["spec"]


def test_slices_of_tpus(capsys):
    found = rendered(capsys, *TPU)
    job, spec, pod = job_of(found)
    assert (job["replicas"], spec["completions"], spec["parallelism"]) == (2, 4, 4)
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"google.com/tpu": 4}}
    assert container["command"][-2:] == LINE[1:]
    assert pod["terminationGracePeriodSeconds"] == 120


def test_nodes_with_gpus_in_a_queue(capsys):
    found = rendered(capsys, *GPU)
    job, spec, pod = job_of(found)
    assert (job["replicas"], spec["completions"]) == (1, 2)
    assert found["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q"}
    assert found["metadata"]["namespace"] == "n"
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert {"name": "runs", "mountPath": "/runs"} in container["volumeMounts"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*BASE[:1], *LINE], "the following arguments are required: --image"),
        ([*BASE, "--tpu=v9:4x4", *LINE], "expected KIND:TOPOLOGY as v5e:4x4"),
        ([*BASE, "--tpu=v5e:4by4", *LINE], "expected KIND:TOPOLOGY as v5e:4x4"),
        ([*TPU, "--nodes=2", *LINE], "--tpu excludes --gpu and --nodes"),
        ([*BASE, "--slices=2", *LINE], "--slices belongs to --tpu"),
        ([*BASE, "--gpu=h100", *LINE], "expected KIND:COUNT as nvidia-h100-80gb:8"),
        ([*BASE, "--names=x", *LINE], "Did you mean --name or --namespace?"),
        (["--name=A_b", "--image=x", *LINE], "a letter first, got 'A_b'"),
        ([*BASE, *LINE[:2]], "no --workdir behind `--`"),
        ([*BASE, *LINE[:2], "--workdir=/run/x"], "does not lie on the volume"),
    ],
)
def test_a_wrong_line_is_one_line(capsys, words, said):
    assert jobset.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("jobset: error: ")
    assert said in err
    assert err.count("\n") == 1


def test_without_dry_run_kubectl_gets_the_same_yaml(capfd, tmp_path, monkeypatch):
    expected = yaml_text.dump(rendered(capfd, *TPU))
    stub = tmp_path / "kubectl"
    stub.write_text('#!/bin/sh\necho "$@" >called\ncat >applied\nexit 7\n')
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    assert jobset.main([*TPU, *LINE]) == 7
    assert pathlib.Path("applied").read_text() == expected
    assert pathlib.Path("called").read_text() == "apply --filename=-\n"


# -- as a cluster would run it ---------------------------------------------------------


@pytest.fixture
def place(tmp_path):
    fake_roxxel.install(tmp_path)
    return tmp_path


def interpreted(capsys, place, *words, flags=()):
    found = rendered(capsys, *words, line=[*LINE, *flags])
    interpreter = Interpreter(found, place)
    return interpreter, interpreter.run()


def attempts(place, index):
    lines = (place / f"attempts.{index}").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_all_pods_of_all_slices_are_one_run(capsys, place):
    interpreter, end = interpreted(capsys, place, *BASE, "--tpu=v5e:2x4", "--slices=2")
    assert (end, interpreter.restarts) == ("Completed", 0)
    seen = [attempts(place, i)[0] for i in range(4)]
    assert all(one["argv"] == LINE[1:] for one in seen)
    assert [one["env"]["ROXXEL_PROCESS_ID"] for one in seen] == ["0", "1", "2", "3"]
    assert {one["env"]["ROXXEL_NUM_PROCESSES"] for one in seen} == {"4"}
    assert len({one["env"]["ROXXEL_COORDINATOR"] for one in seen}) == 1


@pytest.mark.parametrize(
    ("codes", "ends"),
    [
        # Saved, then a lost peer's error and a kill: all are tried again.
        ("42/1/0", ("Completed", 2)),
        ("42/42/42/42", ("Failed", 3)),  # no more restarts
        ("2/0", ("Failed", 0)),
        ("42/3/0", ("Failed", 1)),
    ],
)
def test_exit_codes_decide(capsys, place, codes, ends):
    words = (*BASE, "--restarts=3", "--grace_secs=5")
    flag = f"--do=codes:{codes}"
    interpreter, end = interpreted(capsys, place, *words, flags=[flag])
    assert (end, interpreter.restarts) == ends


def test_when_one_pod_dies_the_others_are_told(capsys, place):
    flags = (
        "--do.0=file:ready,codes:137/0",
        "--do.1=touch:ready,first:signal,codes:42/0",
    )
    words = (*BASE, "--nodes=2", "--grace_secs=20")
    interpreter, end = interpreted(capsys, place, *words, flags=flags)
    assert (end, interpreter.restarts) == ("Completed", 1)
    assert interpreter.codes[0] == {("worker-0", 0): 137, ("worker-0", 1): 42}


# -- its parts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        {"a": {"b": [1, {"c": "x", "d": []}, [True, None]], "e": {}}, "f": ""},
        [
            "no",
            "1",
            "4x4",
            "a: b",
            "- c",
            "# d",
            "é",
            "two\nlines",
            "~",
            "'",
            '"',
            "1e3",
        ],
        {"key with space": "x", "9": "y", "no": "z"},
    ],
)
def test_yaml_reads_back_as_it_was(value):
    assert yaml.safe_load(yaml_text.dump(value)) == value


def test_the_image_holds_what_a_run_needs(repo_root):
    text = (repo_root / "launch/Dockerfile").read_text()
    lines = [line.split() for line in text.splitlines()]
    copied = [name for words in lines if words[:1] == ["COPY"] for name in words[1:-1]]
    assert all((repo_root / name).exists() for name in copied)
    assert {"roxxel", "configs", "experiments", "launch"} <= set(copied)
    (entry,) = [line for line in text.splitlines() if line.startswith("ENTRYPOINT")]
    command = json.loads(entry.removeprefix("ENTRYPOINT "))
    assert command == ["python3", "-m", "roxxel.main"]
