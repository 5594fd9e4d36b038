"""Which folder a run has: one in which it has finished, or that of today's source.

Folders of several sources lie side by side; `identity`, the hash of settings, data and declared
versions, decides which of them are the same run (lra/runs/folder.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lra.base import versions
from lra.base.code import CHOSEN, Source, find_source, source_of
from lra.base.versions import is_ours
from lra.runs.folder import STATUS, RunFolder, code_in, finished, result_name

if TYPE_CHECKING:  # `lra status` reads folders without Hydra
    from lra.settings.run import Run


Ended = Callable[["Run", Path], bool]  # says if a run has ended in a folder


def folder_of(
    run: Run, fingerprint: str, *, again: bool = False, ended: Ended = finished
) -> RunFolder:
    """The folder of a run on data of this fingerprint. With `rerun` it is that of the latest
    attempt with today's source, or, with `again` too, of the one after it if that has finished."""
    numerics = run.experiment.numerics()
    identity = run.experiment.identity(fingerprint, numerics)
    parts = [name for name in numerics if name in versions.PARTS]
    source = source_of(versions.methods_of(run.attention), parts, chosen_code(run))
    path, attempt = place_of(run) / f"{identity}-{source.hash}" / f"seed-{run.seed}", 1
    if run.rerun:
        path, attempt = _last_attempt(run, path, again)
    elif not ended(run, path):
        path = _made_by_other_source(run, identity, source, ended) or path
    return RunFolder(run, path, fingerprint, identity, numerics, source, attempt)


def find(run: Run, ended: Ended = finished) -> RunFolder | None:
    """Find the folder that a run has or will have; None while its data are not prepared. Knobs that
    a search sets identify a run: set them first (lra/compute/solved.py)."""
    from lra.data.prepare import find_prepared

    length = run.protocol.data.max_length
    prepared = find_prepared(run.task, max_length=length, data_dir=run.data_dir)
    return None if prepared is None else folder_of(run, prepared.fingerprint, ended=ended)


def place_of(run: Run) -> Path:
    """Where the runs of a method lie, of all settings and seeds."""
    group = Path(run.runs_dir) / run.task.name / run.protocol.name / run.model.name
    return group / run.attention["name"]


def _last_attempt(run: Run, first: Path, again: bool) -> tuple[Path, int]:
    folder, attempt = first, 1
    while True:
        following = first.with_name(f"{first.name}-attempt-{attempt + 1}")
        if not (following.exists() or (again and (folder / result_name(run)).exists())):
            return folder, attempt
        folder, attempt = following, attempt + 1


def _made_by_other_source(run: Run, identity: str, source: Source, ended: Ended) -> Path | None:
    """Find the newest run that has ended and that other source of the project made; None if there
    is none. What is not the project's has to be the same."""
    folders = place_of(run).glob(f"{identity}*/seed-{run.seed}")
    found = [folder for folder in folders if ended(run, folder)]
    newest_first = sorted(found, key=partial(_ended_at, run), reverse=True)
    same = (folder for folder in newest_first if source.same_outside(code_in(folder)["code"]))
    return next(same, None)


def _ended_at(run: Run, folder: Path) -> float:
    result = folder / result_name(run)
    return (result if result.exists() else folder / STATUS).stat().st_mtime


# ---------------------------------------------------------------------- runs of other source


def other_source(folder: RunFolder) -> str:
    """Name what differs in the source that made this run; empty where nothing does."""
    made_by = code_in(folder.path)
    return folder.source.differs_from(made_by["code"], made_by["sources"])


def earlier(folder: RunFolder) -> tuple[str, Path] | None:
    """Find an unfinished run of these settings that another version, or other source, began: what
    has changed since, and its folder."""
    run, where = folder.run, f"seed-{folder.run.seed}"
    same = place_of(run).glob(f"{folder.identity}*/{where}")
    if others := sorted(same, key=lambda other: other.stat().st_mtime):
        made_by = code_in(others[-1])
        differs = folder.source.differs_from(made_by["code"], made_by["sources"])
        return f"the source has changed ({differs})", others[-1]
    for part, numerics in versions.earlier(folder.numerics):
        identity = run.experiment.identity(folder.fingerprint, numerics)
        if others := sorted(place_of(run).glob(f"{identity}*/{where}")):
            now = folder.numerics[part]
            return f"numerics of the {part} is {now}, and was {numerics[part]}", others[-1]
    return None


def note_other_code(folder: RunFolder) -> None:
    """Say which run of the same settings is kept, where one of other code begins anew."""
    if not folder.path.exists() and not folder.run.rerun and (found := earlier(folder)):
        why, other = found
        print(f"{why}: beginning anew, {other} is kept")


def chosen_code(run: Run) -> dict[str, list[str]]:
    """List the modules from outside the project of a run's metrics, and of what it names that moves
    its result."""
    from lra import data
    from lra.base.hydras import targets_in
    from lra.base.targets import module_of, resolve
    from lra.metrics.metric import get
    from lra.settings.own import chosen, decides

    parts: dict[str, list[str]] = {}
    # A metric decides which checkpoint is the best; phase one has its own, an accuracy.
    names = [] if run.pretrain.is_the_run else data.of(run.task).metric_names
    for name in names:
        module = type(get(name)).__module__
        if not is_ours(module) and find_source(module) is not None:
            parts[f"{CHOSEN}metric {name}"] = [module]
    for setting, options in chosen(run):
        if not decides(setting, options):
            continue
        found = [module_of(resolve(setting, target)) for target in targets_in(options)]
        if modules := [module for module in found if module is not None and not is_ours(module)]:
            # With a space in callbacks.ema: a dot in a key would make dotted names ambiguous.
            parts[f"{CHOSEN}{setting.replace('.', ' ')}"] = modules
    return parts
