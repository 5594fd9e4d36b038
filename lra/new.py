"""`lra new attention foo`, `lra new mixer foo`, `lra new task foo`: write files that work and await
their content.

Inside a clone an attention or a mixer becomes a method of luna-lra; elsewhere, like every task, a
package of its own, which declares it as an entry point. The files are those of lra/templates, with
`$name` and its like filled in.
"""

from __future__ import annotations

import argparse
import keyword
import re
from pathlib import Path
from string import Template

from lra.base.disk import disk_errors
from lra.base.errors import UserError
from lra.base.places import CONFIGS, PACKAGE

Plan = tuple[dict[Path, str], dict[str, str], str]  # templates by file, words, what to do then
TEMPLATES = {"attention": "features", "mixer": "mixer", "task": "task"}
YOURS = {
    "attention": "formula, paper, traits, costs",
    "mixer": "recurrence, paper, traits, costs",
    "task": "title, options, examples, settings",
}
FOLDERS = {"attention": "attention", "mixer": "mixers"}  # of luna/


def add_arguments(new: argparse.ArgumentParser) -> None:
    kinds = new.add_subparsers(dest="kind", required=True, metavar="kind")
    attention = kinds.add_parser(
        "attention",
        help="a working method: luna/attention/NAME.py and configs/attention/NAME.yaml in a clone "
        "of luna-lra, elsewhere luna-NAME/, a package that declares it as an entry point",
    )
    attention.add_argument(
        "--weights", action="store_true", help="weights of all pairs, in place of a feature map"
    )
    mixer = kinds.add_parser(
        "mixer",
        help="a working recurrence with projections of its own, its definition and a test: "
        "luna/mixers/NAME.py in a clone, elsewhere a package, as above",
    )
    task = kinds.add_parser(
        "task", help="a working task: lra-NAME/, a package that declares it as an entry point"
    )
    for kind in (attention, mixer, task):
        kind.add_argument("name", help="lower-case letters, digits and underscores")
        kind.set_defaults(run=lambda a: write(a.kind, a.name, weights=getattr(a, "weights", False)))


def write(kind: str, name: str, *, weights: bool = False) -> None:
    check(kind, name)
    title = "".join(part.capitalize() for part in name.split("_"))
    template = "weights" if weights else TEMPLATES[kind]
    inside = kind != "task" and in_a_clone()
    files, words, then = (of_clone if inside else of_package)(kind, name, title, template)
    for path in files:
        if path.exists():
            raise UserError(f"{path} exists already; remove it, or choose another name")
    for path, content in files.items():
        text = (PACKAGE / "templates" / f"{content}.txt").read_text(encoding="utf-8")
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template(text).substitute(words), encoding="utf-8")
        print(path)
    print(f"Write what is yours into these files ({YOURS[kind]}), then:\n  {then}")


def in_a_clone() -> bool:
    root = CONFIGS.parent
    return (root / "pyproject.toml").exists() and Path.cwd().is_relative_to(root)


def of_clone(kind: str, name: str, title: str, template: str) -> Plan:
    """The files of a method of luna-lra."""
    root, folder = CONFIGS.parent, FOLDERS[kind]
    files = {
        root / "luna" / folder / f"{name}.py": template,
        CONFIGS / "attention" / f"{name}.yaml": f"{kind}_options",
    }
    if kind == "mixer":
        files[root / "tests" / "luna" / folder / f"test_{name}.py"] = "mixer_test"
    words = {"name": name, "Name": title, "module": f"luna.{folder}.{name}"}
    then = f"lra check {name}\n  make test K={name}\n  lra train experiment=demo attention={name}"
    return files, words, then


def of_package(kind: str, name: str, title: str, template: str) -> Plan:
    """The files of a package of one's own, with an entry point."""
    if kind == "task":
        module, group, entry = f"lra_{name}", "lra.tasks", f"lra_{name}:{title}"
        then = f"lra data check {name}\n  lra train task={name} attention=luna"
    else:
        module = entry = f"luna_{name}"
        group = "luna.attention"
        then = f"lra check {name}\n  lra train experiment=demo attention={name}"
    package = module.replace("_", "-")
    folder = Path.cwd() / package
    files = {folder / "pyproject.toml": "project", folder / f"{module}.py": template}
    if kind == "mixer":
        files[folder / f"test_{module}.py"] = "mixer_test"
    words = {"name": name, "Name": title, "module": module, "package": package}
    return files, words | {"group": group, "entry": entry}, f"pip install -e {package}\n  {then}"


def check(kind: str, name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(
            f"'{name}' cannot be its name: use lower-case letters, digits and underscores, start "
            "with a letter, and avoid the keywords of Python"
        )
    from lra.data import registry
    from lra.settings.search_path import method_names  # imports Hydra

    if name in (registry.names() if kind == "task" else method_names()):
        raise UserError(f"the {kind} '{name}' exists already; choose another name")
