"""Records as evaluations in the format of Every Eval Ever, one JSON file a run.

The fields are those of version 0.3.0 of its eval.schema.json
(https://github.com/evaleval/every_eval_ever, MIT licence). Its details are texts, whatever they
hold. A network that a run trained is a model of its own; its seed is part of the evaluation's name.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lra.base.disk import disk_errors, write_atomically
from lra.base.errors import UserError
from lra.metrics.metric import get
from lra.results.record import Record
from lra.runs.facts import flat

VERSION = "0.3.0"
PERCENT = "%"
# For metrics of this package alone: the range of any other one is not known.
BOUNDS: dict[str, tuple[float | str, float | str]] = {
    **dict.fromkeys(("accuracy", "accuracy_f1", "f1", "average_precision"), (0, 100)),
    **dict.fromkeys(("matthews", "pearson", "spearman", "pearson_spearman"), (-100, 100)),
    **dict.fromkeys(("rmse", "mae", "bits_per_byte"), (0, "Infinity")),
    "perplexity": (1, "Infinity"),
    "r2": ("-Infinity", 1),
}


def write(records: Iterable[Record], folder: Path, organization: str) -> list[Path]:
    """Write a file for each record, below the path that the datastore asks for; the same record
    always has the same file."""
    if not slug(organization):
        raise UserError("--organization needs the name of who publishes these results")
    paths = []
    for record in records:
        log = evaluation(record, organization)
        collection = slug(log["evaluation_results"][0]["source_data"]["dataset_name"])
        name = uuid.UUID(bytes=hashlib.sha256(record.run.encode()).digest()[:16], version=4)
        place = Path("data", collection, *log["model_info"]["id"].split("/"), f"{name}.json")
        path = folder / place
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, f"{json.dumps(log, indent=2)}\n".encode())
        paths.append(path)
    return paths


def evaluation(record: Record, organization: str) -> dict[str, Any]:
    """The object that the schema describes."""
    model = f"{slug(organization)}/{slug(record['task'])}-{slug(record.attention)}"
    model += f"-{record['identity']}"
    finished = record.finished or datetime.now(UTC)  # the first conversions did not record it
    moment = str(finished.timestamp())
    return {
        "schema_version": VERSION,
        "evaluation_id": f"{dataset(record)}/{model}/seed-{record['seed']}/{moment}",
        "evaluation_timestamp": moment,
        "retrieved_timestamp": moment,
        "source_metadata": {
            "source_name": "luna-lra",
            "source_type": "evaluation_run",
            "source_organization_name": organization,
            "evaluator_relationship": "first_party",  # who evaluates a network here has trained it
        },
        "eval_library": {
            "name": "luna-lra",
            "version": str(record.get("versions.luna-lra", "unknown")),
            "additional_details": texts({"revision": record.revision, "code": record.code}),
        },
        "model_info": model_info(record, model, organization),
        "evaluation_results": list(results(record)),
    }


def dataset(record: Record) -> str:
    return f"lra.{record['task']}"


def model_info(record: Record, model: str, organization: str) -> dict[str, Any]:
    facts = {
        "deployment_type": "self_deployed",
        "model_availability": "unknown",
        "run": record.run,
        "command": record.get("command"),
        "size": record["model"],
        "parameters": record.get("compute.parameters"),
        "flops_per_example": record.get("compute.flops"),
        **{f"settings.{name}": value for name, value in flat(record["settings"])},
    }
    return {
        "name": f"{record.attention}, {record['model']}, trained on {record['task']}",
        "id": model,
        "developer": organization,
        "inference_engine": {
            "name": "torch",
            "version": str(record.get("versions.torch", "unknown")),
        },
        "additional_details": texts(facts),
    }


def results(record: Record) -> Iterator[dict[str, Any]]:
    """The score of the record, then the other metrics of its stage that are known here."""
    stage = record.stage
    noise, metric = stage.get("noise"), record["metric"]
    yield result(record, metric, record.score, noise=noise)
    for name, value in stage.get("metrics", {}).items():
        try:
            known = get(name)
        except (
            UserError
        ):  # of a package that is not installed: its unit and direction are not known
            continue
        facts = ("name", "title", "unit", "higher_is_better")
        yield result(record, {fact: getattr(known, fact) for fact in facts}, value)


def result(
    record: Record, metric: dict[str, Any], score: float, noise: float | None = None
) -> dict[str, Any]:
    """One score, its metric, and the data that it is of."""
    stage, name = record.stage, metric["name"]
    config = {
        "metric_id": name if name in BOUNDS else f"lra.{name}",
        "metric_name": metric["title"],
        "lower_is_better": not metric["higher_is_better"],
    }
    if metric["unit"]:
        config["metric_unit"] = "percent" if metric["unit"] == PERCENT else metric["unit"]
    if name in BOUNDS:
        least, most = BOUNDS[name]
        config |= {"score_type": "continuous", "min_score": least, "max_score": most}
    data = {name: value for name, value in flat(record["data"]) if value is not None}
    uncertainty = {
        "standard_error": None if noise is None else {"value": noise},
        "num_samples": stage.get("scored") or stage.get("examples"),
    }
    return {
        "evaluation_result_id": f"{record.run}/{name}",
        "evaluation_name": dataset(record),
        "source_data": {
            "dataset_name": dataset(record),
            "source_type": "other",
            "additional_details": texts(data),
        },
        "metric_config": config,
        "score_details": {
            "score": score,
            "uncertainty": {k: v for k, v in uncertainty.items() if v is not None},
            "details": texts({"checkpoint": record["select"], "loss": stage.get("loss")}),
        },
    }


def texts(facts: dict[str, Any]) -> dict[str, str]:
    """Spell every value that there is."""
    spelt = {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}
    return {k: v for k, v in spelt.items() if v != "null"}


def slug(name: str) -> str:
    """The name as part of a path and of a model's id."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")
