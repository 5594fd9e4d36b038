"""How long each phase of a run takes."""

from __future__ import annotations

import time


class Clock:
    """Seconds of each phase, including those before an interruption. `starting` is the first step
    after a start, which compiles and warms up."""

    def __init__(self) -> None:
        self.seconds = {"starting": 0.0, "training": 0.0, "evaluation": 0.0}
        self.steps = {"starting": 0, "training": 0}
        self._phase, self._since = "", 0.0  # the phase that runs, and when it began

    def start(self, phase: str) -> None:
        """Begin a phase, and end the one before it; none begins with an empty name."""
        now = time.monotonic()
        if self._phase:
            self.seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def read(self) -> dict[str, float]:
        """Return the seconds so far, without stopping."""
        self.start(self._phase)
        return dict(self.seconds)

    def step(self) -> None:
        """Count a training step that has ended."""
        self.steps[self._phase] += 1
        if self._phase == "starting":
            self.start("training")

    @property
    def steps_per_second(self) -> float:
        """Return the speed without the first step after a start, where there were others.
        `training` also has the checkpoint that is written behind a step."""
        if self.steps["training"]:
            return self.steps["training"] / self.seconds["training"]
        return self.steps["starting"] / (self.seconds["starting"] + self.seconds["training"])
