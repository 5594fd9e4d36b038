"""`lra data list | prepare | verify | check | baseline | hunt | show`."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any

from lra.base.errors import UserError
from lra.base.parser import Parser
from lra.data import registry
from lra.data.arrays import IN_WORDS, SPLITS, Prepared
from lra.data.picture import write_picture
from lra.data.task import TaskOptions
from lra.data.words import asked, hunted, lines, rungs_in_words, sizes
from lra.settings.compose import composed, task_settings

USUAL = "luna"  # protocol
LEAST_MINUTES, MOST_MINUTES = 0.5, 1440  # of a hunt
SETTINGS = "settings of configs/task/<task>.yaml, such as source=tiny"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="action", parser_class=_AnyOrder
    )

    def add(name: str, run: Any, what: str, task: bool = True, **rest: Any) -> Any:
        action = actions.add_parser(name, help=what)
        if task:
            _add_settings(action, **rest)
        action.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR")
        action.set_defaults(run=run)
        return action

    add("list", _list, "the tasks, their sources, what is prepared", task=False)

    prepare = add("prepare", _prepare, "turn a task's source into arrays, once")
    prepare.add_argument("--workers", type=_positive, help="processes (default: one per core)")
    prepare.add_argument(
        "--force", action="store_true", help="prepare again what is prepared already"
    )
    everything = "default: everything that is prepared"
    add("verify", _verify, "recompute hashes and statistics of prepared data", optional=everything)
    add("check", _check, "what any task must satisfy, for one of your own")

    baseline = add("baseline", _baseline, "what rules without any understanding score")
    baseline.add_argument("--rule", nargs="+", help="only these rules")
    baseline.add_argument(
        "--to", type=Path, metavar="FILE", help="keep the scores in this file, for tables: .jsonl"
    )

    hunt = add("hunt", _hunt, "can the task be answered by a shortcut?")
    hunt.add_argument(
        "--minutes", type=_minutes, default=5.0, metavar="N", help="stop after them (default: 5)"
    )
    hunt.add_argument("--to", type=Path, metavar="FILE", help="keep what was found: .jsonl")

    show = add("show", _show, "text, ids, mask and label of examples")
    show.add_argument("--split", choices=SPLITS, default="train")
    show.add_argument(
        "--index", type=_numbers, default=[0], help="such as 0,5,100-103 (default: 0)"
    )
    show.add_argument("--png", type=Path, metavar="FILE", help="images side by side, as a picture")


class _AnyOrder(Parser):
    """Accepts settings after options too; argparse matches `*` with the first words only."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, left = super().parse_known_args(args, namespace)
        if hasattr(parsed, "settings"):
            parsed.settings = [*parsed.settings, *(w for w in left if not w.startswith("-"))]
            left = [word for word in left if word.startswith("-")]
        return parsed, left


def _add_settings(parser: argparse.ArgumentParser, optional: str = "") -> None:
    tasks = "a task of `lra data list`"  # their names would import every task
    words: dict[str, Any] = {"nargs": "?", "help": f"{tasks} ({optional})"}
    parser.add_argument("task", **(words if optional else {"help": tasks}))
    parser.add_argument("settings", nargs="*", default=[], metavar="key=value", help=SETTINGS)
    parser.add_argument(
        "--protocol",
        default=USUAL,
        help=f"protocol whose length and dev split are used (default: {USUAL})",
    )
    parser.add_argument(
        "--max-length",
        type=_positive,
        metavar="N",
        help="ids kept per example (default: the protocol's)",
    )


def _options(arguments: argparse.Namespace) -> tuple[TaskOptions, int]:
    settings, length = task_settings(arguments.task, arguments.protocol)
    options = registry.configure(arguments.task, arguments.settings, settings)
    return options, arguments.max_length or length


def _prepared(arguments: argparse.Namespace) -> Prepared:
    from lra.data.prepare import find_prepared, prepare_command

    options, length = _options(arguments)
    prepared = find_prepared(options, max_length=length, data_dir=arguments.data_dir)
    if prepared is None:
        todo = prepare_command(options, max_length=length, data_dir=arguments.data_dir)
        raise UserError(f"{options.name} is not prepared with these settings: run `{todo}`")
    return prepared


def _list(arguments: argparse.Namespace) -> None:
    from lra.data.prepare import load_prepared

    for name in registry.names():
        task = registry.of(options := registry.configure(name))
        shape = f"{task.max_length or task.width(options, 0)} ids"
        if task.grid:
            shape = f"{task.grid[0]} x {task.grid[1]} image"
        if task.dual:
            shape = f"2 x {shape}"
        read = f"vocabulary {task.vocab}"
        if task.channels:
            read = f"{task.channels} numbers each"
        print(f"{name:<14} {task.title}: {asked(task)}, {shape}, {read}")
        print(f"{'':<14} sources: {', '.join(task.sources)}")
        for folder in _folders(arguments.data_dir, name):
            try:
                state = f"prepared: {folder}  ({load_prepared(folder).describe()})"
            except UserError as error:
                state = f"unusable: {error}"
            print(f"{'':<14} {state}")


def _prepare(arguments: argparse.Namespace) -> None:
    from lra.data.prepare import find_prepared, prepare

    options, length = _options(arguments)
    where = {"max_length": length, "data_dir": arguments.data_dir}
    before = None if arguments.force else find_prepared(options, **where)
    prepared = prepare(options, **where, workers=arguments.workers, force=arguments.force)
    took = f"in {prepared.manifest['made']['seconds']} s"
    print(f"{options.name} {'was prepared already' if before else f'is prepared, {took}'}")
    for line in (prepared.folder, prepared.describe(), *sizes(prepared.facts)):
        print(f"  {line}")


def _verify(arguments: argparse.Namespace) -> None:
    from lra.data.verify import verify

    differing = 0
    for folder in _folders_to_verify(arguments):
        print(folder)
        differing += _print_checks(verify(folder))
    if differing:
        raise UserError(f"{differing} of the lines above differ: prepare again with --force")


def _check(arguments: argparse.Namespace) -> None:
    from lra.data.verify import check_task

    if differing := _print_checks(check_task(*_options(arguments))):
        raise UserError(f"{differing} of the lines above differ")


def _print_checks(checks: Any) -> int:
    """Print the lines of a check; count those that differ."""
    differing = 0
    for line in checks:
        print(f"  {line.status:<8} {line.text}", flush=True)
        differing += line.status == "differs"
    return differing


def _folders_to_verify(arguments: argparse.Namespace) -> list[Path]:
    """List the preparation of these settings, or all of the task, or all of every task."""
    if arguments.settings or arguments.max_length or arguments.protocol != USUAL:
        return [_prepared(arguments).folder]
    names = [registry.get(arguments.task).name] if arguments.task else registry.names()
    folders = [folder for name in names for folder in _folders(arguments.data_dir, name)]
    if not folders:
        what = arguments.task or "<task>"
        raise UserError(
            f"nothing is prepared in {arguments.data_dir}: run `lra data prepare {what}`"
        )
    return folders


def _folders(data_dir: Path, task: str) -> list[Path]:
    return sorted(p.parent for p in (data_dir / task).glob("[!.]*/manifest.json"))


def _show(arguments: argparse.Namespace) -> None:
    prepared, index = _prepared(arguments), arguments.index
    split = prepared.split(arguments.split)
    if beyond := [i for i in index if not 0 <= i < len(split)]:
        raise UserError(
            f"{prepared.layout.name} has no {IN_WORDS[split.name]} example {beyond[0]}: "
            f"they are numbered 0 to {len(split) - 1}"
        )
    if arguments.png:
        write_picture(split, index, arguments.png)
        print(arguments.png)
    else:
        print("\n\n".join("\n".join(lines(prepared, split, i)) for i in index))


def _baseline(arguments: argparse.Namespace) -> None:
    from lra.data.prepare import find_or_prepare
    from lra.data.rounds import NEEDS
    from lra.data.rules import baselines, check_names, keep

    options, length = _options(arguments)
    task = registry.of(options)
    check_names(task, task.matters(options), arguments.rule or ())  # before it is prepared
    prepared = find_or_prepare(options, max_length=length, data_dir=arguments.data_dir)
    scores = baselines(prepared, registry.of_facts(prepared.facts), arguments.rule)
    print(f"{scores['task']}, {prepared.describe()}\n")
    metric = scores["metric"]
    unit = f" in {metric['unit']}" if metric["unit"] else ""
    print(f"{metric['title']}{unit} of each rule on test, and on dev:")
    _print_rules(scores["rules"], metric["digits"])
    if "readers" in scores:
        print("\nReaders of a part, which know everything else; no row is held against them:")
        _print_rules(scores["readers"], metric["digits"])
    if "rungs" in scores:
        print("\n" + "\n".join(rungs_in_words(scores["rungs"])))
    missing = ", ".join(scores.get("missing", []))
    if missing and not arguments.rule:
        print(f"\nrules incomplete: {missing} {NEEDS}")
    elif missing and arguments.to:
        print(f"\nrules incomplete: {missing} were not asked for")
    if arguments.to:
        keep(scores, arguments.to)
        print(f"\n{arguments.to}")


def _print_rules(rules: dict[str, Any], digits: int) -> None:
    for name, score in rules.items():
        on_test, on_dev = (f"{score[split]:6.{digits}f}" for split in ("test", "val"))
        print(f"{name:<22} {on_test} {on_dev}  {score['reads']}")


def _hunt(arguments: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from lra.data.hunt import check_hunted, hunt, keep
    from lra.data.prepare import find_or_prepare

    if arguments.protocol != USUAL:  # whose length a probe does without
        _refuse_unknown_task(arguments.task, arguments.protocol)
    options, length = _options(arguments)
    check_hunted(registry.of(options))
    prepared = find_or_prepare(options, max_length=length, data_dir=arguments.data_dir)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("hunting")

        def show(what: str, done: int, of_all: int) -> None:
            progress.update(bar, description=what, completed=done, total=of_all)

        found = hunt(prepared, registry.of_facts(prepared.facts), arguments.minutes, show)
    print(f"{found['task']}, {prepared.describe()}\n")
    print("\n".join(hunted(found)))
    if arguments.to:
        keep(found, arguments.to)
        print(f"\n{arguments.to}")


def _refuse_unknown_task(name: str, protocol: str) -> None:
    """UserError where no run under this protocol could have this task."""
    registry.get(name)
    rows = composed([f"protocol={protocol}"]).protocol.get("tasks") or {}
    own = name not in registry.BUILTIN and "others" in rows
    if rows and name not in rows and not own:
        raise UserError(
            f"protocol '{protocol}' does not know task '{name}', but {', '.join(rows)}: choose "
            "another --protocol"
        )


def _minutes(word: str) -> float:
    try:
        minutes = float(word)
    except ValueError:
        minutes = math.nan
    if not LEAST_MINUTES <= minutes <= MOST_MINUTES:
        raise argparse.ArgumentTypeError(
            f"{word} is no time to hunt in: give minutes from {LEAST_MINUTES} to {MOST_MINUTES:,}"
        )
    return minutes


def _positive(word: str) -> int:
    if not word.isdecimal() or not int(word):
        raise argparse.ArgumentTypeError(f"{word} is not a whole number from 1 on")
    return int(word)


def _numbers(words: str) -> list[int]:
    """Read 0,5,100-103 as 0, 5, 100, 101, 102, 103."""
    numbers, one = list[int](), r"\d{1,7}(-\d{1,7})?"
    for word in words.split(",") if re.fullmatch(f"{one}(,{one})*", words) else []:
        first, dash, last = word.partition("-")
        numbers += range(int(first), int(last if dash else first) + 1)
    if not numbers:
        raise argparse.ArgumentTypeError(f"'{words}' names no examples, as 0,5,100-103 does")
    return numbers
