"""Mistakes of the user as one sentence and an exit code.

Every command of `lra` runs inside `guard`, which imports nothing heavy: errors of Hydra, OmegaConf
and torch are looked for only where these have been imported. Else they raised nothing.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from lra.base import disk, groups
from lra.base.errors import WRONG_TYPE, UserError, first_line, nearest, of_type, printable
from lra.base.screen import fitted

# Keys of a config that hold no settings: Hydra's own, and tables where settings are looked up.
CHOICES = ("experiment", "task", "attention", "protocol", "model")  # groups, as users write them
TABLES = ("hydra", "presets", "tasks", "methods", "knobs", "rows", "rates")
# The base of all errors of a package, by the module that defines it.
ERRORS = {
    "hydra.errors": "HydraException",
    "omegaconf.errors": "OmegaConfBaseException",
    "yaml": "YAMLError",
}


# Settings of earlier versions, and what they are called now.
RENAMED = {
    "budget": "the share of a protocol's steps is steps_share now, as steps_share=0.1",
    "trainer.accumulate_grad_batches": "trainer.micro_batch=8 computes the gradients of the "
    "protocol's batch from 8 examples at a time",
}


def errors_of_settings() -> tuple[type[Exception], ...]:
    """List the errors of Hydra, OmegaConf and YAML, as far as these have been imported."""
    imported = ((sys.modules.get(module), name) for module, name in ERRORS.items())
    return tuple(getattr(module, name) for module, name in imported if module is not None)


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of Hydra, OmegaConf and YAML into a UserError."""
    try:
        yield
    except errors_of_settings() as error:
        raise UserError(explain(error)) from error


def _unknown(group: str, name: str, known: Iterable[str]) -> str:
    """Say that a group has no such choice, and which others have it: of an experiment, a user may
    have read the name of its protocol."""
    elsewhere = [f"{other}={name}" for other in CHOICES if name in groups.names(other)]
    there = f" (there is {' and '.join(elsewhere)})" if elsewhere else ""
    return f"unknown {group} '{name}'{there}{nearest(name, known)}"


def explain(error: BaseException) -> str:
    """Describe an error of Hydra or OmegaConf: an unknown choice or key with the nearest names, any
    other one in the library's own words."""
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

    from lra.settings.presets import NO_OPTIONS

    if message := in_our_words(str(error.__cause__ or error)) or in_our_words(str(error)):
        return message
    if isinstance(error, OverrideParseException):
        return f"'{error.override}' is no setting: write key=value, without spaces"
    if isinstance(error, MissingConfigException):
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        if error.options:
            return _unknown(group, name, error.options)
        if group.startswith("hydra"):
            return f"{group}/{name} needs an extra that is not installed: docs/clusters.md"
    if isinstance(error, HydraException) and isinstance(error.__cause__, OmegaConfBaseException):
        error = error.__cause__
    if isinstance(error, ConfigKeyError | ConfigAttributeError):
        key = str(error.full_key or error.key)
        if key in RENAMED:
            return f"'{key}' is not a setting: {RENAMED[key]}"
        if not isinstance(parent := error.parent_node, DictConfig):
            return f"'{key}' is not a setting"
        if key.startswith("attention.") and (method := OmegaConf.select(parent, "name")):
            of_method = {str(other) for other in parent} - {"name", *NO_OPTIONS}
            option = key.partition(".")[2]
            return f"attention '{method}' has no option '{option}'{nearest(option, of_method)}"
        name, whole = key.rpartition(".")[2], parent._get_root()  # OmegaConf has no public way up
        if elsewhere := list(_places(name, OmegaConf.to_container(cast(DictConfig, whole)))):
            return f"'{key}' is not a setting; did you mean {' or '.join(elsewhere)}?"
        others = {str(other) for other in parent} - {"name", *NO_OPTIONS}
        return f"'{key}' is not a setting{nearest(name, others)}"
    lines = (line.strip() for line in str(error).splitlines() if "_type=" not in line)
    return f"invalid settings: {' '.join(filter(None, lines))}"


def in_our_words(message: str) -> str | None:
    """Word the commonest errors of Hydra and OmegaConf as this project does; None for others."""
    for pattern, words in WORDED:
        if match := pattern.search(message):
            return words(match)
    return None


def _several(match: re.Match[str]) -> str:
    word = match[1]
    key, _, values = word.partition("=")
    if key in ("logger", "callbacks"):
        return f"'{word}' has several values: write {key}=[{values}] for all of them at once"
    return f"'{word}' has several values: add -m to run each of them, a sweep"


def _wrong_type(match: re.Match[str]) -> str:
    return of_type(match[3], match[1], match[2])


def _no_row(match: re.Match[str]) -> str:
    """A task that a protocol, or a model, knows nothing of."""
    group, task = match[1], match[2]
    known = {
        kind: sorted(name for name in groups.names(kind) if task in _tasks_of(kind, name))
        for kind in ("protocol", "model")
    }
    advice = [f"{kind}={' or '.join(names)}" for kind, names in known.items() if names]
    choose = f": choose {' and '.join(advice)}" if advice else ""
    return f"this {group} has no row that fits task '{task}'{choose}"


def _tasks_of(group: str, name: str) -> set[str]:
    """The tasks that the file of a protocol or a model has rows for itself."""
    import yaml

    file = groups.find(group, name)
    content = yaml.safe_load(file.read_text(encoding="utf-8")) if file else None
    return set((content or {}).get("tasks") or {})


WORDED: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"Ambiguous value for argument '([^']+)'"), _several),
    (
        re.compile(WRONG_TYPE.pattern + r"\s+full_key: (\S+)"),
        _wrong_type,
    ),
    (
        re.compile(r"Value '(.*)' is not a valid (\w+) \(type \w+\)\s+full_key: (\S+)"),
        _wrong_type,
    ),
    (
        re.compile(r"is not a ListConfig, [^.]*tuple\.\s+full_key: (\S+)"),
        lambda match: f"{match[1]} must be a list, such as {match[1]}=[..,..]",
    ),
    (
        re.compile(r"Could not load '(?!hydra)(\w+)/([\w.-]+)'"),
        lambda match: _unknown(match[1], match[2], groups.names(match[1])),
    ),
    (
        re.compile(r"An item is already at '(\S+)'"),
        lambda match: f"{match[1]} exists: write it without the +",
    ),
    (re.compile(r"Interpolation key '(protocol|model)\.tasks\.(\w+)\."), _no_row),
    (
        re.compile(r"type `(\w+)` has missing mandatory value: (\w+)"),
        lambda match: f"{match[1].lower()}.{match[2]} is missing: give it a value",
    ),
)


def _places(name: str, nested: Any, above: str = "") -> Iterator[str]:
    """Find the settings of this name in a config: lr is protocol.recipe.lr."""
    for key, value in nested.items():
        if key == name:
            yield f"{above}{key}"
        elif isinstance(value, dict) and key not in TABLES:
            yield from _places(name, value, f"{above}{key}.")


def guard(command: Callable[[], Any]) -> int:
    """Run a command; a mistake of the user becomes one sentence on stderr and exit code 2."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # terminals whose encoding has no × or ─ print ?
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting with 1
    try:
        with explained():
            command()
        return 0
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)  # after the ^C of a terminal
        return 130
    except BrokenPipeError:  # nobody reads the output any more: `lra ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if (message := sentence_of(error)) is None:
            raise
    first, *others = map(printable, message.splitlines() or [""])
    print(fitted("error: ", first, sys.stderr), *others, sep="\n", file=sys.stderr)
    return 2


@contextmanager
def in_a_sentence() -> Iterator[None]:
    """From Python, turn into a UserError what is one sentence on the command line."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or (message := sentence_of(error)) is None:
            raise
        raise UserError(message) from error


def sentence_of(error: Exception) -> str | None:
    """Word a mistake of the user, or what this machine lacks; None for any other error."""
    luna, torch = map(sys.modules.get, ("luna", "torch"))  # not imported, they raised nothing
    if isinstance(error, UserError) or (luna and isinstance(error, luna.LunaError)):
        return str(error)
    if isinstance(error, OSError) and error.errno in (*disk.FULL, *disk.BROKEN, errno.ENAMETOOLONG):
        place = error.filename or "this command's files"  # outside of disk_errors, as in Hydra
        return disk.sentence(error, place, "point runs_dir and data_dir elsewhere")
    if isinstance(error, UnicodeEncodeError):  # of a path: all files are written as UTF-8
        return f"{error.object!a:.200} has letters that {error.encoding} lacks: set LC_ALL=C.UTF-8"
    if isinstance(error, ImportError) and "failed to map segment" in str(error):
        return f"not enough memory ({first_line(error)}): see ulimit -v"
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return f"not enough memory ({first_line(error)}): choose a smaller protocol.recipe.batch"
    return None
