"""Trackio as a logger: `logger=trackio`, for which Lightning has none. All stays on this machine
unless `logger.trackio.space_id` or `server_url` names another place."""

from __future__ import annotations

from typing import Any

from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only


class TrackioLogger(Logger):
    """A run of a Trackio project; the options are those of `trackio.init`."""

    def __init__(self, project: str, name: str, **options: Any):
        import trackio  # where it is not installed, the run says so before it trains

        super().__init__()
        self._trackio, self._run = trackio, None
        # A resumed run goes on under its name; a notebook gets no dashboard in its output.
        self._options = {"project": project, "name": name, "resume": "allow", "embed": False}
        self._options |= options

    @property
    def name(self) -> str:
        return str(self._options["project"])

    @property
    def version(self) -> str:
        return str(self._options["name"])

    @property
    def experiment(self) -> Any:
        """Trackio's own run."""
        return self._started()

    def _started(self) -> Any:
        if self._run is None:
            self._run = self._trackio.init(**self._options)
        return self._run

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any]) -> None:  # type: ignore[override]
        """Starts the run, which takes its settings only then."""
        self._options["config"] = params
        self._started()

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.experiment.log(metrics, step=step)

    @rank_zero_only
    def finish(self) -> None:
        """Writes what is not yet on disk, and ends the run."""
        self._trackio.finish()
