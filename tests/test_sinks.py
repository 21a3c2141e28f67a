"""Places for metrics beside the logger's own files; slow and failing ones."""

import functools
import json
import threading

import numpy as np
import pytest

from roxxel import Logger, optim
from roxxel.dataset import Roxxel
from roxxel.sinks import Metrics, Sink
from roxxel.sinks.background import Background
from roxxel.sinks.jsonl import JsonlSink
from roxxel.train.sample import Sample
from roxxel.train.trainer import Trainer
from tests.tiny import Bigram, compile_once  # noqa: F401


class Slow:
    """Takes records only when `gate` is open."""

    def __init__(self):
        self.gate = threading.Event()
        self.steps = []
        self.closed = False

    def message(self, record):
        pass

    def metrics(self, record):
        self.gate.wait(60)
        self.steps.append(record.step)

    def rewind(self, step):
        pass

    def flush(self):
        pass

    def close(self):
        self.closed = True


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_stuck_sink_holds_up_neither_the_files_nor_the_calls(tmp_path):
    slow, jsonl = Slow(), JsonlSink()
    log = Logger(tmp_path, console=False, sinks=[slow, jsonl])
    for step in range(1, 51):
        log.log_metrics_summary(step, loss=1.0)
    log.flush()
    assert len((tmp_path / "roxxel_metrics.csv").read_text().splitlines()) == 51
    assert len(lines(tmp_path / "roxxel_metrics.jsonl")) == 50
    assert slow.steps == []
    slow.gate.set()
    log.close()
    assert slow.steps == list(range(1, 51))
    assert slow.closed


def test_records_that_a_sink_never_took_are_counted(tmp_path):
    slow = Slow()
    sink = Background(slow, most_waiting=3, flush_secs=0, close_secs=0)
    for step in range(10):
        sink.metrics(Metrics(time=0.0, step=step, values={}))
    with pytest.raises(RuntimeError, match=r"\d+ records were not delivered"):
        sink.close()
    slow.gate.set()


def test_jsonl_keeps_each_step_once_over_restarts(tmp_path):
    for first, last in ((1, 10), (8, 12)):
        with Logger(tmp_path, console=False, sinks=[JsonlSink()]) as log:
            log.rewind(first - 1)
            for step in range(first, last + 1):
                log.log_metrics_summary(step, loss=float("nan") if step == 3 else 1.0)
    rows = lines(tmp_path / "roxxel_metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[2]["loss"] == "nan"
    assert rows[0]["perplexity"] == pytest.approx(np.e)


def test_jsonl_drops_a_torn_line(tmp_path):
    path = tmp_path / "roxxel_metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    with Logger(tmp_path, console=False, sinks=[JsonlSink()]) as log:
        log.log_metrics_summary(2, loss=1.0)
    assert [row["step"] for row in lines(path)] == [1, 2]


def test_media_go_to_the_sinks_that_take_them(tmp_path):
    class Album(Slow):
        def media(self, record):
            self.steps.append((record.kind, record.name, np.shape(record.value)))

    album, blind = Album(), Slow()
    with Logger(tmp_path, console=False, sinks=[album, blind]) as log:
        log.log_text(1, "sample", "once upon a time")
        log.log_histogram(1, "weights", np.arange(10.0))
        log.log_image(1, "map", np.zeros((4, 5)))
    assert album.steps == [
        ("text", "sample", ()),
        ("histogram", "weights", (10,)),
        ("image", "map", (4, 5, 1)),
    ]
    assert blind.steps == []


def test_an_image_of_another_shape_is_reported(tmp_path):
    with Logger(tmp_path, console=False, sinks=[Slow()]) as log:
        log.log_image(1, "map", np.zeros((4, 5, 7)))
    text = (tmp_path / "roxxel_system.log").read_text()
    assert "image 'map' has shape (4, 5, 7), expected [height, width]" in text


def test_tensorboard_events(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    from roxxel.sinks.tensorboard import TensorBoardSink

    with Logger(tmp_path, console=False, sinks=[TensorBoardSink()]) as log:
        for step in (1, 2, 3):
            log.log_metrics_summary(step, loss=float(step))
        log.rewind(2)
        log.log_metrics_summary(3, loss=9.0)
        log.log_text(3, "sample", "abc")
        log.log_histogram(3, "weights", np.arange(10.0))
        log.log_image(3, "map", np.zeros((4, 5, 3)))
    events = []
    for path in sorted((tmp_path / "tensorboard").glob("events*")):
        for record in _records(path.read_bytes()):
            event = Event()
            event.ParseFromString(record)
            events.append(event)
    losses = [
        (event.step, value.simple_value)
        for event in events
        for value in event.summary.value
        if value.tag == "loss"
    ]
    assert sorted(losses) == [(1, 1.0), (2, 2.0), (3, 3.0), (3, 9.0)]
    starts = [e.step for e in events if e.session_log.status]  # steps that come again
    assert starts[-1] == 3
    tags = {
        value.tag.split("/")[0] for event in events for value in event.summary.value
    }
    assert {"sample", "weights", "map", "loss", "perplexity"} <= tags


def _records(data):
    """Payloads of a TFRecord file: length, its sum, payload, its sum."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        yield data[at + 12 : at + 12 + size]
        at += 16 + size


def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from roxxel.sinks.wandb import WandbSink

    monkeypatch.setenv("WANDB_SILENT", "true")
    with Logger(tmp_path, console=False, sinks=[WandbSink(mode="offline")]) as log:
        log.log_metrics_summary(1, loss=1.0)
        log.log_text(1, "sample", "<b>")
        log.log_histogram(1, "weights", np.arange(10.0))
    wandb.teardown()  # its service has written what it was given
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"perplexity" in file.read_bytes()
    assert (tmp_path / "wandb_id").read_text() in file.name


def test_mlflow_in_the_folder_of_the_run(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from roxxel.sinks.mlflow import MlflowSink

    for steps in ((1, 2), (2, 3)):
        with Logger(tmp_path, console=False, sinks=[MlflowSink()]) as log:
            for step in steps:
                log.log_metrics_summary(step, loss=float(step))
            log.log_text(steps[-1], "sample", "abc")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    run_id = (tmp_path / "mlflow_run_id").read_text()
    history = client.get_metric_history(run_id, "loss")
    assert sorted((m.step, m.value) for m in history) == [
        (1, 1),
        (2, 2),
        (2, 2),
        (3, 3),
    ]
    assert {f.path for f in client.list_artifacts(run_id)} == {
        "sample_2.txt",
        "sample_3.txt",
    }


class Mine:
    """A sink of a user: the methods of `roxxel.sinks.Sink` and one more."""

    def __init__(self):
        self.rows, self.texts, self.told = [], [], []

    def message(self, record):
        self.told.append(record.text)

    def metrics(self, record):
        self.rows.append((record.step, dict(record.values)))

    def media(self, record):
        self.texts.append((record.step, record.kind, record.name, record.value))

    def rewind(self, step):
        self.rows = [row for row in self.rows if row[0] <= step]

    def flush(self):
        pass

    def close(self):
        self.told.append("closed")


class Text(Sample):
    """Needs no model that can be continued."""

    def text(self, model, data=None):
        return "once upon"


def test_a_sink_of_ones_own_gets_every_step_and_the_sample(tmp_path, compile_once):  # noqa: F811
    dataset = Roxxel(tmp_path / "train_*.rox")
    dataset.write([np.arange(1100).astype(np.uint8) % 16])
    mine: Sink = Mine()
    trainer = Trainer(
        model=Bigram,
        optimizer=optim.adamw(schedule=optim.warmup_cosine(peak=0.05, total_steps=12)),
        stream=dataset.stream(8, 8, seed=3, overlap=1),
        total_steps=12,
        sample=Text(prompt="a"),
        logger=functools.partial(Logger, sinks=[mine], console_every=5),
    )
    assert trainer.run(tmp_path / "run") == 0
    assert [step for step, _ in mine.rows] == list(range(1, 13))
    wanted = {"loss", "perplexity", "grad_norm", "weight_norm", "tokens", "elapsed"}
    assert all(wanted <= set(values) for _, values in mine.rows)
    assert mine.texts == [(12, "text", "sample", "once upon")]
    assert mine.told[-1] == "closed"
