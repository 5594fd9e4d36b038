"""`lra new attention foo`: write the files of a new attention, which works and awaits its formula.

Inside a clone they become a method of luna-lra; elsewhere a package of its own, which declares the
method as an entry point.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template
from typing import Any

from lra.base.config import CONFIGS, UserError
from lra.base.disk import disk_errors

CLASS = '''\
"""$Name attention: what it is, in one sentence. Paper: https://arxiv.org/abs/0000.00000"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from luna.base import LunaError, Paper, Slot, register
from luna.linear import KernelAttention


@register("$name")
class $Name(KernelAttention):
    paper = Paper(title="$Name", year=2026, url="https://arxiv.org/abs/0000.00000")
    complexity = "O(n d e)"

    def __init__(self, slot: Slot, *, power: float = 2.0):
        super().__init__(slot)
        if power <= 0:
            raise LunaError(f"$name.power must be greater than 0, got {power}")
        self.power = power
        self.feature_dim = slot.head_dim  # D

    def phi(self, x: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
        """The formula: features (B, H, n, D) of x (B, H, n, d)."""
        return F.softplus(x) ** self.power
'''

OPTIONS = """\
# $Name: https://arxiv.org/abs/0000.00000
name: $name
power: 2.0  # exponent of the feature map

exempt: its cost has no knob, because its features are as wide as a head
"""

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "luna-$dashed"
version = "0.1.0"
dependencies = ["luna-lra"]

[project.entry-points."luna.attention"]
$name = "luna_$name"

[tool.setuptools]
py-modules = ["luna_$name"]
"""

NEXT_IN_CLONE = """\
Write its formula and its options into these files, then:
  make test K=$name    (the first time it installs what tests need)
  lra train experiment=demo attention=$name"""

NEXT_OUTSIDE = """\
Write its formula into the second file, then:
  pip install -e luna-$dashed
  lra check $name
  lra train experiment=demo attention=$name"""


def add_parser(commands: Any) -> None:
    new = commands.add_parser("new", help="write the files of a new attention")
    kinds = new.add_subparsers(dest="kind", required=True, metavar="kind")
    attention = kinds.add_parser(
        "attention",
        help="a working feature map, to be filled with a formula",
        description="Inside a clone of luna-lra: luna/attention/NAME.py and "
        "configs/attention/NAME.yaml. Elsewhere: luna-NAME/, a package of its own that declares "
        "the method as an entry point.",
    )
    attention.add_argument("name", help="lower-case letters, digits and underscores")
    attention.set_defaults(run=lambda a: write(a.name))


def write(name: str) -> None:
    check(name)
    files, following = _files(name, Path.cwd())
    words = {
        "name": name,
        "Name": "".join(part.capitalize() for part in name.split("_")),
        "dashed": name.replace("_", "-"),
    }
    for path in files:
        if path.exists():
            raise UserError(f"{path} exists already; remove it, or choose another name")
    for path, text in files.items():
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template(text).substitute(words), encoding="utf-8")
        print(path)
    print(Template(following).substitute(words))


def check(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(
            f"'{name}' cannot name a method: use lower-case letters, digits and underscores, start "
            "with a letter, and avoid the keywords of Python"
        )
    from lra.settings.search_path import method_names  # imports Hydra

    if name in method_names():
        raise UserError(f"there is an attention '{name}' already; choose another name")


def _files(name: str, here: Path) -> tuple[dict[Path, str], str]:
    """List the files to write, with their templates, and say what to do next."""
    root = CONFIGS.parent
    if (root / "pyproject.toml").exists() and here.is_relative_to(root):
        files = {
            root / "luna" / "attention" / f"{name}.py": CLASS,
            CONFIGS / "attention" / f"{name}.yaml": OPTIONS,
        }
        return files, NEXT_IN_CLONE
    package = here / f"luna-{name.replace('_', '-')}"
    return {
        package / "pyproject.toml": PROJECT,
        package / f"luna_{name}.py": CLASS,
    }, NEXT_OUTSIDE
