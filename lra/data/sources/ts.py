"""Time series in the text format .ts of timeseriesclassification.com.

    # a comment
    @dimensions 2
    @classLabel true low high
    @data
    0.1,0.2,?:1,2,3:low        of each dimension its values, then the class

`?` and NaN are missing. Capital letters are small ones. Of a header that says too little the series
decide, and one that contradicts them is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from lra.base.errors import readable


class Labelled(NamedTuple):
    values: list[np.ndarray]  # of each series (tokens, dimensions), nan where one is missing
    labels: list[str]
    classes: list[str]  # in the order of the header


def read_ts(path: Path) -> Labelled:
    header, values, labels = dict[str, list[str]](), list[np.ndarray](), list[str]()
    with readable(path, "give a .ts file of series that have a class"), path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = raw.decode("utf-8").strip().lower()
            if not line or line.startswith("#"):
                continue
            if "@data" not in header:
                key, *header[key] = line.split()
                if header.get("@timestamps") == ["true"]:
                    raise ValueError("its values have time stamps, which are not read")
                continue
            *dimensions, label = line.split(":")
            rows = [text.replace("?", "nan").split(",") for text in dimensions]
            if len({len(row) for row in rows}) != 1:
                raise ValueError(f"line {number} is no dimensions of one length and a class")
            values.append(np.array(rows, np.float64).T)
            labels.append(label.strip())
        if not values:
            raise ValueError("it has no line @data, or no series behind it")
        classes = header.get("@classlabel", [])[1:]
        if strange := set(labels) - set(classes):
            named = f"names {', '.join(classes)}, but not" if classes else "is not there to name"
            raise ValueError(f"its @classLabel {named} the class {min(strange)}")
        lengths, channels = ({x.shape[axis] for x in values} for axis in (0, 1))
        said = header.get("@dimensions", ["1"] if header.get("@univariate") == ["true"] else None)
        if len(channels) > 1 or said not in (None, [str(min(channels))]):
            raise ValueError("its series have not as many dimensions as each other or its header")
        if header.get("@equallength") == ["true"] and len(lengths) > 1:
            raise ValueError("@equalLength is true, and its series are not equally long")
    return Labelled(values, labels, classes)
