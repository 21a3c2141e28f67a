"""MLflow tracking, into a database in the run's folder by default (`[mlflow]`)."""

import pathlib
from typing import Any

from roxxel import extras
from roxxel.sinks import Media, Message, Metrics

try:
    import mlflow
    from mlflow.entities import Metric
except ImportError as err:
    raise extras.missing("roxxel.sinks.mlflow", "mlflow", err) from err

ID_FILE = "mlflow_run_id"
_MOST_AT_ONCE = 1000  # metrics of one request, by MLflow's limit


class MlflowSink:
    """Scalars and texts of one MLflow run.

    Args:
        tracking_uri: Of the server; `sqlite:///<run>/mlflow.db` by default.
        experiment: Name of the MLflow experiment, made where it is missing.
        name: Of the run; the folder's name by default.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str = "roxxel",
        name: str | None = None,
    ):
        self._uri, self._experiment, self._name = tracking_uri, experiment, name
        self._folder = pathlib.Path()
        self._client: Any = None
        self._run_id = ""
        self._waiting: list[Metric] = []

    def attach(self, log_dir: pathlib.Path) -> None:
        """The run's folder: the default database, and the id that resumes the run."""
        self._folder = log_dir

    def message(self, record: Message) -> None:
        """Nothing: the text log has them."""

    def metrics(self, record: Metrics) -> None:
        """Collects the metrics of a step."""
        stamp = int(record.time * 1000)
        self._waiting += [
            Metric(_name(name), float(value), stamp, record.step)
            for name, value in record.values.items()
        ]
        if len(self._waiting) >= _MOST_AT_ONCE:
            self.flush()

    def media(self, record: Media) -> None:
        """A text becomes an artifact of the run; others are not for MLflow."""
        if record.kind == "text":
            file = f"{_name(record.name)}_{record.step}.txt"
            self._opened().log_text(self._run_id, record.value, file)

    def rewind(self, step: int) -> None:
        """Nothing: MLflow keeps all values of a step, the latest counts."""

    def flush(self) -> None:
        """Sends what was collected."""
        waiting, self._waiting = self._waiting, []
        for first in range(0, len(waiting), _MOST_AT_ONCE):
            part = waiting[first : first + _MOST_AT_ONCE]
            self._opened().log_batch(self._run_id, metrics=part)

    def close(self) -> None:
        """Sends the rest and ends the run."""
        self.flush()
        if self._client is not None:
            self._client.set_terminated(self._run_id)
            self._client = None

    def _opened(self) -> Any:
        if self._client is None:
            uri = self._uri or f"sqlite:///{self._folder / 'mlflow.db'}"
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            self._run_id = self._known_run() or self._new_run()
        return self._client

    def _known_run(self) -> str:
        path = self._folder / ID_FILE
        return path.read_text().strip() if path.exists() else ""

    def _new_run(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            artifacts = (self._folder / "mlflow_artifacts").absolute().as_uri()
            number = self._client.create_experiment(self._experiment, artifacts)
        else:
            number = found.experiment_id
        name = self._name or self._folder.name
        run = self._client.create_run(number, run_name=name)
        (self._folder / ID_FILE).write_text(run.info.run_id)
        return run.info.run_id


def _name(name: str) -> str:
    """A name that MLflow accepts."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)
