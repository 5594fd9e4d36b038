"""A sweep is checked before its first run: a wrong value would else be found when its turn comes,
which may be hours later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import hydra

from lra.base.errors import UserError
from lra.settings.compose import check_settings
from lra.settings.run import Run
from lra.settings.search_path import initialised
from lra.sweeps.status import jobs

SWEEPER = "BasicSweeper"  # Hydra's own; the trials of others are not known beforehand


def check_sweep(words: Sequence[str], sweeper: str = SWEEPER) -> None:
    """UserError for the first value that no run can have, unless a search chooses the values."""
    if not sweeper.endswith(SWEEPER):
        return
    with initialised():
        for job, differs in each_value(list(jobs(words))):
            try:
                check_network(check_settings(hydra.compose("train", job)))
            except (UserError, ValueError) as error:
                named = any(word in str(error) for word in differs)
                where = "" if named or not differs else f"{' '.join(differs)}: "
                raise UserError(f"{where}{error}; no run of this sweep was started") from error


def each_value(listed: Sequence[list[str]]) -> Iterator[tuple[list[str], list[str]]]:
    """The first job, and of the others each with a word that none before it has, with these words:
    a sweep of a thousand runs has a few dozen values."""
    seen = set(listed[0]) if listed else set()
    for number, job in enumerate(listed):
        new = [word for word in job if word not in seen]
        if new or number == 0:
            seen.update(new)
            yield job, new


def check_network(run: Run) -> None:
    """Build the network of a run without its weights, for methods check their own options."""
    import luna
    from lra.compute.count import build

    try:
        build(run, "meta")
    except luna.LunaError as error:
        raise UserError(str(error)) from error
    except (NotImplementedError, RuntimeError):
        return  # its weights cannot be drawn without a device: it is built when its turn comes
