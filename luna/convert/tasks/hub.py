"""GLUE from the Hugging Face hub, through the package `datasets`. Without the package or a network,
the error names the local files to give instead."""

from __future__ import annotations

from collections.abc import Sequence

from luna.base import LunaError
from luna.convert.tasks.base import Example

REPOSITORY = "nyu-mll/glue"


def glue(
    name: str, split: str, columns: Sequence[str], classes: Sequence[str] | None, *, files: str
) -> list[Example]:
    """One split, in the order of the benchmark's own files."""
    otherwise = f"or give a folder with {files} (gluebenchmark.com/tasks), data.path=<folder>"
    try:
        import datasets
    except ImportError as error:
        raise LunaError(
            f"without data.path, '{name}' comes from the Hugging Face hub by the package "
            f"datasets, which is not installed: pip install datasets, {otherwise}"
        ) from error
    theirs = split.replace("dev", "validation")  # dev_matched: validation_matched
    try:
        rows = datasets.load_dataset(REPOSITORY, name, split=theirs)
    except Exception as error:  # whatever no network, a proxy or a full disk causes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LunaError(
            f"'{name}' cannot be loaded from the Hugging Face hub ({reason}): try again, "
            f"{otherwise}"
        ) from error
    missing = [c for c in (*columns, "label") if c not in rows.column_names]
    if missing:
        raise LunaError(
            f"{REPOSITORY} on the hub has no column {', '.join(map(repr, missing))} for '{name}': "
            f"try another version of datasets, {otherwise}"
        )
    labels: list[float] = list(map(float if classes is None else int, rows["label"]))
    names: Sequence[str] = getattr((rows.features or {}).get("label"), "names", ())
    if classes is not None and set(names) == set(classes):  # else 0 and 1 by other names
        labels = [classes.index(names[int(label)]) for label in labels]
    texts = zip(*(list(rows[c]) for c in columns), strict=True)
    return list(zip(texts, labels, strict=True))
