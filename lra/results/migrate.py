"""`lra records migrate`: records and run folders of schema 1, rewritten once as schema 2.

Scores, seeds and answers stay as they are. What changes is how they are written: a score in the
unit of its metric beside the count that it follows from, stages in place of test, test_last and
test_best, steps_share in place of budget, options that are younger than a record at the value that
runs had before. Settings identify a run, so each gets a new name; `--map` keeps both.

Records in files of several runs that do not say how far drawing the test examples again moves their
score (`noise`) get that from their answers, in schema 2 too.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lra.base.digests import check_digest, digest
from lra.base.disk import disk_errors, write_atomically, write_json
from lra.base.errors import UserError, readable
from lra.base.yaml_data import read_yaml
from lra.metrics.metric import facts_of, get
from lra.metrics.target import target_class
from lra.results.record import Record, lines_of, merged
from lra.runs.answers import rename_answers
from lra.runs.facts import find_fact, without_dots
from lra.runs.folder import RESULT
from lra.runs.schema import CONVERSION, TRAINING, check_record, name_of
from lra.settings.experiment import SCHEMA_VERSION, identity_of

Facts = dict[str, Any]

# Options that are gone, at the value that is left: settings of schema 1 may hold them.
FORMER: dict[str, Facts] = {
    "bigbird": {"graph_seed": None},
    "cosformer": {"P": "max_len"},
    "flowformer": {"clamp": None},
    "informer": {"divisor": None, "masked": None},
    "lotformer": {"masses": "uniform", "mass_temperature": 0.5, "init": "lra", "scaling": None},
    "luna": {"bank": "mlp"},
    "mala": {"scale": "mean"},
    "nystrom": {"constant": None},
    "performer": {"scaling": "norm", "redraw_unit": None},
    "polaformer": {"gate": "x", "local": None},
    "reformer": {"buckets": None, "wrap": None},
    "rff": {"kernel": "gaussian"},
    "skyformer": {"constant": None, "bandwidth_dim": None},
    "synthesizer": {"factor": None, "frozen": False},
    "t2r": {"scale_q": False},
}
# Options that are younger than a method's first records, at the value that runs had before.
LATER: dict[str, Facts] = {
    "luna": {"phases": False, "projections": "learned", "psi": "learned"},
}
# The same, of every method.
OF_ALL: Facts = {"normalise": "sum", "short_conv": 0, "head_norm": False, "gate": "none"}
# The metrics of conversions, by their tasks; all others are accuracies.
METRIC_OF = {
    "cola": "matthews",
    "mrpc": "accuracy_f1",
    "qqp": "accuracy_f1",
    "stsb": "pearson_spearman",
}
COLUMNS = {"train_accuracy": "train_score", "dev_accuracy": "dev_score"}  # of metrics.csv


def migrate(folder: Path, names: Path | None = None) -> dict[str, str]:
    """Rewrite every record below a folder, with its answers, and where it has its own folder its
    checkpoints and metrics; give the new name of each run by its old one. What is of schema 2
    already keeps its name."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give one of runs, or of records")
    renamed: dict[str, str] = {}
    with disk_errors(folder):
        for path in sorted(folder.rglob("*.jsonl")):
            renamed |= _sweep(path)
        for path in sorted(folder.rglob(RESULT)):
            renamed |= _folder(path)
        if names is not None:
            _keep(renamed, names)
    return renamed


def _sweep(path: Path) -> dict[str, str]:
    """Rewrite a file with a record per line, and the answers beside it."""
    with readable(path, "it holds no records"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
        shared = lines.pop(0)["shared"] if lines and lines[0].keys() == {"shared"} else {}
        before = [merged(shared, facts) for facts in lines]
    if not before or not all(_is_old(facts) for facts in before):
        _add_noise(path, before)
        return {}
    after = []
    for facts in before:
        with readable(path, "export the runs again"):
            check_digest(facts)
        after.append(upgraded(facts, str(path)))
    names = {old_name(old): new["run"] for old, new in zip(before, after, strict=True)}
    answers = path.with_suffix(".npz")
    if answers.exists():
        rename_answers(answers, names)
    _write(path, after)
    _add_noise(path, after)
    return names


def _write(path: Path, records: Sequence[Facts]) -> None:
    text = "".join(f"{line}\n" for line in lines_of(records))
    write_atomically(path, text.encode())


def _add_noise(path: Path, records: Sequence[Facts]) -> None:
    """Add the noise of each score that lacks it and has its answers."""
    after = [_with_noise(facts, path) for facts in records]
    if any(x is not y for x, y in zip(records, after, strict=True)):
        _write(path, [{k: v for k, v in facts.items() if k != "digest"} for facts in after])


def _with_noise(facts: Facts, path: Path) -> Facts:
    """Examples that have several answers had equally many in all tasks of schema 1."""
    stages, select = facts.get("stages", {}), facts.get("select")
    if select not in stages or "noise" in (stage := stages[select]):
        return facts
    record = Record(facts, path)
    if (answers := record.answers) is None:
        return facts
    per_example, rest = divmod(len(answers), stage.get("examples") or len(answers))
    if rest:
        return facts
    metric = get(facts["metric"]["name"])
    target = target_class(metric.targets[0])(2)
    noise = metric.noise(answers.grouped(np.full(len(answers) // per_example, per_example)), target)
    return facts | {"stages": stages | {select: stage | {"noise": noise}}}


def _folder(path: Path) -> dict[str, str]:
    """Rewrite the record of a run's folder, and all that names the run in it."""
    with readable(path, "remove it, and run the same command again"):
        before = json.loads(path.read_text(encoding="utf-8"))
        if "digest" not in before or not _is_old(
            before
        ):  # a teacher has no digest: it is no record
            return {}
        check_digest(before)
    after = upgraded(before, str(path))
    if after["kind"] == TRAINING:
        _rename_run(path.parent, before, after)
        path = _moved(path.parent, before["identity"], after["identity"]) / RESULT
    write_json(path, after | {"digest": digest(after)})
    return {old_name(before): after["run"]}


def _is_old(facts: Facts) -> bool:
    return facts.get("schema") == 1 and "kind" not in facts


def _keep(renamed: dict[str, str], names: Path) -> None:
    """Add old and new names to a table; those that are there stay."""
    there: dict[str, str] = {}
    if names.exists():
        rows = csv.reader(io.StringIO(names.read_text(encoding="utf-8")))
        there = dict(list(rows)[1:])
    lines = [f"{old},{new}\n" for old, new in sorted((there | renamed).items())]
    write_atomically(names, "".join(["schema 1,schema 2\n", *lines]).encode())


# ---------------------------------------------------------------------- the folder of a run


def _rename_run(folder: Path, before: Facts, after: Facts) -> None:
    import yaml

    if (answers := folder / "answers.npz").exists():
        rename_answers(answers, {old_name(before): after["run"]})
    if (metrics := folder / "metrics.csv").exists():
        write_atomically(metrics, _in_percent(metrics.read_text(encoding="utf-8")).encode())
    if (config := folder / "config.yaml").exists():
        with readable(config, "remove it"):
            facts = read_yaml(config)
        facts["settings"] = after["settings"]
        write_atomically(config, yaml.safe_dump(facts, sort_keys=False).encode())
    for checkpoint in folder.glob("checkpoints/*.ckpt"):
        _rename_checkpoint(checkpoint, after["run"])


def _rename_checkpoint(path: Path, run: str) -> None:
    import torch

    with readable(path, "remove it: the record stays"):
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        content = io.BytesIO()
        torch.save(checkpoint | {"identity": run}, content)
    write_atomically(path, content.getbuffer())


def _in_percent(text: str) -> str:
    """Write the accuracies of a metrics.csv in percent, under their new names."""
    rows = list(csv.DictReader(io.StringIO(text)))
    out = io.StringIO()
    names = [COLUMNS.get(name, name) for name in (rows[0] if rows else {})]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        shares = {new: row.pop(old) for old, new in COLUMNS.items() if old in row}
        percent = {name: f"{100 * float(x):.6g}" if x else "" for name, x in shares.items()}
        writer.writerow(row | percent)
    return out.getvalue()


def _moved(folder: Path, before: str, after: str) -> Path:
    """Give the folder of a run its new name, which other seeds of the run share."""
    group = folder.parent
    target = group.with_name(group.name.replace(before, after, 1)) / folder.name
    target.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(target)
    if not any(group.iterdir()):
        group.rmdir()
    return target


# ---------------------------------------------------------------------- facts


def old_name(facts: Facts) -> str:
    return name_of(facts["identity"], facts.get("codes"), facts["seed"], facts.get("attempt") or 1)


def upgraded(facts: Facts, where: str) -> Facts:
    """Give the facts of schema 1 in the form of schema 2, checked."""
    facts = {key: value for key, value in facts.items() if key != "digest"}
    kind = CONVERSION if "scores" in facts else TRAINING
    change: Callable[[Facts], Facts] = {TRAINING: _training, CONVERSION: _conversion}[kind]
    with readable(where, "its facts are not those of schema 1"):
        after = change(facts) | {"schema": SCHEMA_VERSION, "kind": kind}
        after["identity"] = identity_of(after["settings"], find_fact(after, "data.fingerprint"))
        codes, attempt = after.get("codes"), after.get("attempt") or 1
        after["run"] = name_of(after["identity"], codes, after["seed"], attempt)
    check_record(f"{where}, rewritten,", after)
    return after


def _training(facts: Facts) -> Facts:
    settings, attention = dict(facts["settings"]), _options(facts["attention"])
    settings["attention"] = _options(settings["attention"])
    settings["steps_share"] = settings.pop("budget")
    settings["metrics"] = ["accuracy"]
    after = facts | {"settings": settings, "attention": attention}
    after["steps_share"] = after.pop("budget")
    test = after.pop("test")
    after["metric"] = facts_of(get("accuracy"))
    after["select"] = test["select"]
    tested = {"last": after.pop("test_last"), "best": after.pop("test_best")}
    after["stages"] = {name: _stage(stage) for name, stage in tested.items() if stage}
    after["score"] = after["stages"][test["select"]]["score"]
    after["data"] = dict(after["data"])
    majority = after["data"].pop("majority")
    # Of the whole test set, also where a protocol leaves the last batch out.
    labels = facts["data"]["examples"]["test"] * (test.get("scored") or test["examples"])
    after["floor"] = _counted(majority, labels // test["examples"])["score"]
    after["curve"] = [[step, float(f"{100 * share:.6g}")] for step, share in facts["curve"]]
    after["dev"] = _dev(facts, test)
    if "pretraining" in facts:
        held_out = dict(facts["pretraining"]["held_out"])
        held_out["score"] = float(f"{100 * held_out.pop('accuracy'):.6g}")
        after["pretraining"] = facts["pretraining"] | {"held_out": held_out}
    for key in ("attempt", "preset", "command", "code", "codes", "versions", "switches"):
        if after.get(key, 0) is None:
            del after[key]
    return after


def _options(attention: Facts) -> Facts:
    """Leave out options that are gone, and add those that runs of then did not name."""
    name = attention["name"]
    former = FORMER.get(name, {})
    kept = {k: v for k, v in attention.items() if k not in former or v != former[k]}
    return OF_ALL | LATER.get(name, {}) | kept


def _stage(stage: Facts) -> Facts:
    scored = stage.get("scored") or stage["examples"]
    facts = {key: value for key, value in stage.items() if key not in ("accuracy", "select")}
    return facts | {"scored": scored} | _counted(stage["accuracy"], scored)


def _counted(share: float, n: int) -> Facts:
    """Give the count that a share of n follows from, which was written as a float32."""
    right = round(share * n)
    if not math.isclose(share * n, right, rel_tol=0, abs_tol=max(1e-3, 1e-6 * n)):
        raise UserError(f"{share} is no multiple of 1/{n}")
    return {"score": 100 * right / n, "right": right}


def _dev(facts: Facts, test: Facts) -> Facts | None:
    """Give the best evaluation on dev, with its counts where settings and score agree on them."""
    dev = facts.get("dev")
    if not dev or dev.get("accuracy") is None:
        return None
    share, step = dev["accuracy"], dev["step"]
    evaluation = facts["settings"]["protocol"]["evaluation"]
    examples = facts["data"]["examples"]["val"]
    if evaluation["dev_batches"] > 0:
        examples = evaluation["dev_batches"] * facts["batch"]
    elif evaluation["drop_last"]:
        examples -= examples % facts["batch"]
    per_example, rest = divmod(test.get("scored") or test["examples"], test["examples"])
    n = examples * per_example
    if rest == 0 and n and abs(share - round(share * n) / n) < 1e-7:
        return {"step": step, "examples": examples, "scored": n} | _counted(share, n)
    return {"step": step, "score": float(f"{100 * share:.7g}")}


def _conversion(facts: Facts) -> Facts:
    metric = METRIC_OF.get(facts["task"], "accuracy")
    stages = {name: dict(_shares(scores)) for name, scores in facts["scores"].items()}
    select = next(name for name in ("best", "stage1", "swap") if name in stages)
    after = {key: value for key, value in facts.items() if key != "scores"}
    return after | {
        "metric": facts_of(get(metric)),
        "stages": stages,
        "select": select,
        "score": stages[select]["score"],
        "floor": 100 * facts["floor"],
        "times": facts.get("times") or {},
        "stage1": without_dots(facts["stage1"]),
        "stage2": without_dots(facts.get("stage2")),
    }


def _shares(scores: Facts) -> Iterator[tuple[str, Any]]:
    yield "score", 100 * scores["score"]
    yield "metrics", {name: 100 * x for name, x in scores.items() if name != "score"}
