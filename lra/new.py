"""`lra new attention foo`, `lra new task foo`: write files that work and await their content.

Inside a clone an attention becomes a method of luna-lra; elsewhere, like every task, a package of
its own, which declares it as an entry point.
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

$imports


@register("$name")
class $Name($base):
    paper = Paper(title="$Name", year=2026, url="https://arxiv.org/abs/0000.00000")
    complexity = "$complexity"

    def __init__(self, slot: Slot, *, power: float = 2.0):
        super().__init__(slot)
        if power <= 0:
            raise LunaError(f"$name.power must be greater than 0, got {power}")
        self.power = power
$body'''

METHOD_WORDS = {"group": "luna.attention", "entry": "$module", "content": "formula",
                "check": "check", "train": "experiment=demo attention=$name"}  # fmt: skip
TASK_WORDS = {"group": "lra.tasks", "entry": "$module:$Name", "content": "examples",
              "check": "data check", "train": "task=$name attention=luna"}  # fmt: skip
FEATURES = METHOD_WORDS | {
    "imports": """\
import torch.nn.functional as F
from torch import Tensor

from luna.base import LunaError, Paper, Slot, register
from luna.linear import KernelAttention""",
    "base": "KernelAttention",
    "complexity": "O(n d e)",
    "body": '''\
        self.feature_dim = slot.head_dim  # D

    def phi(self, x: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
        """The formula: features (B, H, n, D) of x (B, H, n, d)."""
        return F.softplus(x) ** self.power
''',
}

WEIGHTS = METHOD_WORDS | {
    "imports": """\
from torch import Tensor

from luna.base import Attention, LunaError, Mask, Paper, Slot, register
from luna.blocks import masked_softmax""",
    "base": "Attention",
    "complexity": "O(n^2 (d + e))",
    "body": '''
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        """Combine the values v (B, H, n, e); mask (B, n) is true at real tokens."""
        return self._matrix(q, k, mask, x) @ v

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        """The formula: weights (B, H, n, n) of q and k (B, H, n, d), 0 at padding."""
        scores = q @ k.mT * self.head_dim**-0.5
        return masked_softmax(self.power * scores, None if mask is None else mask[:, None, None])
''',
}

OPTIONS = """\
# $Name: https://arxiv.org/abs/0000.00000
name: $name
power: 2.0  # exponent of the weights

exempt: its cost has no knob
"""

TASK = '''\
"""$Name: what has to be learned, in one sentence."""

from dataclasses import dataclass

import numpy as np

from lra import data


@dataclass
class $Options(data.TaskOptions):
    length: int = 32  # task.length=..: a setting, which identifies the data
    n_train: int = 512


class $Name(data.Task):
    name = "$name"
    title = "which of two tokens is more frequent"
    classes, vocab, max_length = 2, 3, 64  # id 0 is padding
    settings = {"batch": 16, "steps": 20, "every": 10, "warmup": 2}  # over those of the protocol
    Options = $Options

    def splits(self, options, job):
        rng, splits = np.random.default_rng(0), []
        for split, n in (("train", options.n_train), ("val", 64), ("test", 64)):
            rows = rng.integers(1, 3, (n, options.length))
            examples = [data.Example(ids, int(2 * (ids == 2).sum() > len(ids))) for ids in rows]
            splits.append(data.RawSplit(split, examples, n))
        return splits
'''

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$package"
version = "0.1.0"
dependencies = ["luna-lra"]

[project.entry-points."$group"]
$name = "$entry"

[tool.setuptools]
py-modules = ["$module"]
"""

IN_CLONE = """\
Write its formula and its options into these files, then:
  make test K=$name    (the first time it installs what tests need)
  lra train experiment=demo attention=$name"""
OUTSIDE = """\
Write its $content into the second file, then:
  pip install -e $package
  lra $check $name
  lra train $train"""


def add_parser(commands: Any) -> None:
    new = commands.add_parser("new", help="write the files of a new attention or task")
    kinds = new.add_subparsers(dest="kind", required=True, metavar="kind")
    attention = kinds.add_parser(
        "attention",
        help="a working method: luna/attention/NAME.py and configs/attention/NAME.yaml in a clone "
        "of luna-lra, elsewhere luna-NAME/, a package that declares it as an entry point",
    )
    attention.add_argument(
        "--weights", action="store_true", help="weights of all pairs, in place of a feature map"
    )
    task = kinds.add_parser(
        "task", help="a working task: lra-NAME/, a package that declares it as an entry point"
    )
    for kind in (attention, task):
        kind.add_argument("name", help="lower-case letters, digits and underscores")
        kind.set_defaults(run=lambda a: write(a.kind, a.name, weights=getattr(a, "weights", False)))


def write(kind: str, name: str, *, weights: bool = False) -> None:
    check(kind, name)
    is_task, root, here = kind == "task", CONFIGS.parent, Path.cwd()
    title = "".join(part.capitalize() for part in name.split("_"))
    module = f"{'lra' if is_task else 'luna'}_{name}"
    words = {
        "name": name,
        "Name": title,
        "Options": f"{title}Options",
        "module": module,
        "package": module.replace("_", "-"),
    }
    words |= TASK_WORDS if is_task else WEIGHTS if weights else FEATURES
    words |= {key: Template(text).substitute(words) for key, text in words.items()}
    folder, code = here / words["package"], TASK if is_task else CLASS
    files = {folder / "pyproject.toml": PROJECT, folder / f"{module}.py": code}
    following = OUTSIDE
    if not is_task and (root / "pyproject.toml").exists() and here.is_relative_to(root):
        files = {root / "luna" / "attention" / f"{name}.py": code,
                 CONFIGS / "attention" / f"{name}.yaml": OPTIONS}  # fmt: skip
        following = IN_CLONE
    for path in files:
        if path.exists():
            raise UserError(f"{path} exists already; remove it, or choose another name")
    for path, text in files.items():
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template(text).substitute(words), encoding="utf-8")
        print(path)
    print(Template(following).substitute(words))


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
