"""What `lra train` and `lra convert` take: printed without words, or with --help."""

from __future__ import annotations

import re
import shutil
import textwrap

from lra.base import groups
from lra.base.places import CONFIGS

EXAMPLES = {
    "train": """\
Train one attention on one task of the Long Range Arena.

  lra train experiment=demo attention=luna            a minute on two cores
  lra train -m experiment=demo attention=luna,linear  a sweep
  lra train task=listops attention=luna               half a day on two cores
  lra train task=listops attention=luna --cfg job     show the config alone
  lra train -m ... hydra/launcher=slurm --dry         show the script for SLURM
""",
    "convert": """\
Give a trained softmax model linear attention, on a GLUE task or on images.

  lra convert stage=teacher task=mrpc model=minilm    first, with softmax
  lra convert task=mrpc attention=luna model=minilm
""",
}
SETTINGS = {
    "train": "seed=1 steps_share=1.0 data_dir=data runs_dir=runs attention.<option> model.<size> "
    "protocol.recipe.<lr, steps, batch, ...> trainer.<...>",
    "convert": "stage=convert,teacher layers=all,last:<n> device=auto,cpu,cuda "
    "recipe.stage1=ce,mse,both,null recipe.schedule=linear,cosine,constant "
    "recipe.select=dev,train_split model.path=DIR data.path=DIR data.source=own,tiny "
    "teacher=DIR seed=0 runs_dir=runs attention.<option> recipe.<lr, epochs, ...>",
}
TASKS = {"convert": "cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, imagenet1k, image_folder, tiny"}
# Groups of which each choice has a line.
EXPLAINED = ("around", "compute", "experiment", "model", "protocol", "task", "trainer")


def show(command: str) -> None:
    root = CONFIGS if command == "train" else CONFIGS / command
    width = max(shutil.get_terminal_size().columns, 40)
    wrapper = textwrap.TextWrapper(width, subsequent_indent=" " * 12, break_on_hyphens=False)
    print(EXAMPLES[command])
    if command in TASKS:
        print(wrapper.fill(f"{'task':12}{TASKS[command]}"))
    for folder in sorted(set(root.iterdir()) - {CONFIGS / "hydra", CONFIGS / "convert"}):
        group = folder.relative_to(CONFIGS).as_posix()
        said = {name: about(group, name) for name in groups.names(group)}
        if folder.name in EXPLAINED and any(said.values()):
            print(folder.name)
            for name, text in said.items():
                line = f"  {name:17} {text}"
                print(line if len(line) <= width else f"{line[: width - 1].rstrip()}…")
        elif said:
            more = ["and all of `lra list`"] if group == "convert/attention" else []
            print(wrapper.fill(f"{folder.name:12}{', '.join([*said, *more])}"))
    print()
    print(wrapper.fill(f"{'settings':12}{SETTINGS[command]}"))


def about(group: str, name: str) -> str:
    """Give what the comment says with which a config begins, up to its first full stop, colon or
    bracket; without the name of a task or the word What."""
    file = groups.find(group, name)
    lines = file.read_text(encoding="utf-8").splitlines() if file else []
    comment = [line for line in lines[:4] if line.startswith("#") and "@package" not in line]
    text = re.sub(r"^[A-Z][\w-]*: +", "", " ".join(line.lstrip("# ") for line in comment))
    first = re.split(r"(?<=\w\w)[.?:] | \(", text)[0].rstrip(".:?")
    return first[:1].upper() + first[1:]
