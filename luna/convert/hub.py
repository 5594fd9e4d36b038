"""GLUE from the Hugging Face hub, by the package `datasets`; where there is no network, or not the
package, the answer says which local files to give instead."""

from __future__ import annotations

from collections.abc import Sequence

from luna.base import LunaError

REPOSITORY = "nyu-mll/glue"


def glue(
    name: str, split: str, columns: Sequence[str], classes: Sequence[str] | None, *, files: str
) -> tuple[list[tuple[str, ...]], list[float]]:
    """Texts and labels of one split, in the order of the benchmark's own files."""
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
            f"'{name}' did not come from the Hugging Face hub ({reason}): try again, {otherwise}"
        ) from error
    missing = [c for c in (*columns, "label") if c not in rows.column_names]
    if missing:
        raise LunaError(
            f"{REPOSITORY} on the hub has no column {', '.join(map(repr, missing))} for '{name}'; "
            f"{otherwise}"
        )
    texts = list(zip(*(list(rows[c]) for c in columns), strict=True))
    names = getattr((rows.features or {}).get("label"), "names", ())
    if classes is None or set(names) != set(classes):  # a score, or 0 and 1 by other names
        return texts, list(rows["label"])
    return texts, [classes.index(names[label]) for label in rows["label"]]
