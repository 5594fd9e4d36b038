"""`lra data`, through the real command line: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import lra.data
from lra.data.picture import GAP, SMALLEST
from lra.settings.compose import task_settings
from tests.lra.conftest import command

Call = Callable[..., tuple[int, str, str]]


TINY = ("listops", "source=tiny")


def test_the_command_itself(tmp_path: Path) -> None:
    """As a user types it, in processes of their own."""
    done = command("-m", "lra", "data", "prepare", *TINY, "--data-dir", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "listops is prepared" in done.stdout
    done = command("-m", "lra", "data", "prepare", "lisstops", "--data-dir", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "error: unknown task 'lisstops'; did you mean listops or hops?\n"


def test_preparing_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import argparse, sys; from lra.data_commands import add_arguments; "
        "parser = argparse.ArgumentParser(); add_arguments(parser); "
        "words = parser.parse_args(['prepare', 'listops', 'source=tiny', "
        f"'--data-dir', {str(tmp_path)!r}]); words.run(words); "
        "print(sorted({'torch', 'pytorch_lightning', 'luna.base', 'tensorflow', 'rich'}"
        " & set(sys.modules)))"
    )
    done = command("-c", code)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    light = "import sys, lra.data; print({'torch', 'omegaconf', 'yaml'} & set(sys.modules))"
    assert command("-c", light).stdout == "set()\n"


def test_list_shows_tasks_and_what_is_prepared(lra_data: Call) -> None:
    _, out, _ = lra_data("list")
    for name in lra.data.names():
        assert f"{name:<14} {lra.data.get(name).title}: " in out
    assert "prepared:" not in out
    lra_data("prepare", *TINY)
    _, out, _ = lra_data("list")
    assert out.count("prepared:") == 1
    assert "(a bundled miniature, for trying things out, 96 / 32 / 32 examples" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("lisstops",), "unknown task 'lisstops'; did you mean listops or hops?"),
        (("listops", "sede=1"), "task 'listops' has no option 'sede'; did you mean seed?"),
        (("listops", "name=text"), "has no option 'name'"),
        (("listops", "seed"), "'seed' is not a setting: settings are written key=value"),
        (("listops", "seed=x"), "seed must be a whole number, got 'x'"),
        (("listops", "seed=[1"), "seed=[1: "),
        (("listops", "brackets=lose"), "Invalid value 'lose', expected one of [keep, drop]"),
        (("listops", "source=tiny", "n_val=5"), "n_val is read by source=generated only, not by"),
        (("listops", "path=/x"), "path is read by source=release only, not by source=generated"),
        (
            ("retrieval", "path=/no/lra_release.gz"),
            "/no/lra_release.gz does not exist: source=rele"
            "ase needs path=, the official archive lra_release.gz (8 GB",
        ),
        (("image", "source=files", "path=/no/x"), "/no/x does not exist: source=files needs path="),
        (("listops", "n_val=0"), "n_val=0 is out of range: it must be at least 1"),
        (("listops", "--protocol", "lunna"), "unknown protocol 'lunna'; did you mean luna?"),
    ],
)
def test_what_prepare_refuses(words: tuple[str, ...], complaint: str, lra_data: Call) -> None:
    code, out, err = lra_data("prepare", *words)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert complaint in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("action", ["show", "verify"])
def test_what_is_not_prepared_names_the_command(
    action: str, lra_data: Call, tmp_path: Path
) -> None:
    words = ["brackets=drop", "n_train=7"]
    code, _, err = lra_data(action, "listops", *words)
    assert code == 2
    data_dir = tmp_path / "data"
    assert f"run `lra data prepare listops brackets=drop n_train=7 --data-dir {data_dir}`" in err
    if action == "verify":
        code, _, err = lra_data("verify", "listops")
        assert code == 2
        assert f"nothing is prepared in {data_dir}: run `lra data prepare listops`" in err


def test_settings_and_options_come_in_any_order(lra_data: Call) -> None:
    words = ("text", "--protocol", "official", "source=tiny", "checksum=official")
    assert lra_data("prepare", *words)[0] == 0
    _, out, _ = lra_data("verify", "--protocol", "official", "text", "source=tiny")
    assert "differs" not in out


def test_show(lra_data: Call) -> None:
    lra_data("prepare", *TINY)
    code, out, _ = lra_data("show", *TINY, "--split", "train", "--index", "3")
    assert code == 0
    assert out.splitlines() == [
        "listops train 3   label 4   length 18 of 59",
        "  text  [MED 7 [MIN 7 1 9 9 3 ] [SM 5 5 8 9 ] 4 4 ]",
        "  ids   12 8 13 8 2 10 10 4 15 14 6 6 9 10 15 5 5 15",
        "  mask  1 x 18, 0 x 41",
    ]
    code, out, _ = lra_data("show", *TINY, "--split", "val", "--index", "0,30-31")
    assert [line for line in out.splitlines() if "label" in line] == [
        line for line in out.splitlines() if line.startswith("listops dev ")
    ]
    assert [line.split()[2] for line in out.splitlines() if "label" in line] == ["0", "30", "31"]
    code, _, err = lra_data("show", *TINY, "--split", "val", "--index", "32")
    assert code == 2
    assert "listops has no dev example 32: they are numbered 0 to 31" in err


@pytest.mark.parametrize("index", ["3-1", "a", "-1", "0-99999999999", ""])
def test_what_names_no_example(index: str, lra_data: Call) -> None:
    code, _, err = lra_data("show", *TINY, f"--index={index}")
    assert code == 2
    assert f"'{index}' names no examples, as 0,5,100-103 does" in err


def test_show_images_as_a_picture(fake: Callable, lra_data: Call, tmp_path: Path) -> None:
    prepared = fake("pictures")
    file = tmp_path / "new" / "sheet.png"
    code, out, err = lra_data("show", "pictures", "--index", "1-4,7", "--png", str(file))
    assert (code, out, err) == (0, f"{file}\n", "")
    page = np.asarray(PIL.Image.open(file))
    zoom = -(-SMALLEST // 3)
    at = zoom // 2 + zoom * np.arange(3)
    for place, ids in enumerate(prepared.split("train").ids(np.array([1, 2, 3, 4, 7]))):
        x = place % 3 * (3 * zoom + GAP)
        y = place // 3 * (2 * zoom + GAP)
        assert (page[y + at[:2, None], x + at] == ids.reshape(2, 3)).all()
    assert list(file.parent.iterdir()) == [file]


def test_committed_statistics_of_generated_data_fit_these_options() -> None:
    """They are compared when somebody verifies the full data; here, that they would be."""
    task, options = lra.data.get("listops"), lra.data.configure("listops")
    file = Path(lra.data.__file__).parent / "expected" / "listops.generated.json"
    entry, *_ = json.loads(file.read_text(encoding="utf-8"))
    assert entry["when"] == {
        "options": task.matters(options),
        "width": task.width(options, task.max_length),
        "versions": task.versions(options),
    }
    assert entry["expect"]["splits"]["train"]["examples"] == options.n_train


@pytest.mark.parametrize("name", lra.data.builtin_tasks())
def test_the_files_of_configs_repeat_the_defaults(name: str) -> None:
    settings, length = task_settings(name, "luna")
    assert lra.data.configure(name, settings=settings) == lra.data.configure(name)
    assert vars(lra.data.configure(name)).keys() == settings.keys()
    assert lra.data.get(name).max_length in (length, 0)


def test_a_mistake_is_told_before_anything_is_prepared(lra_data: Call, tmp_path: Path) -> None:
    _, out, error = lra_data("baseline", *TINY, "--rule", "typo")
    assert "task 'listops' has no rule 'typo'" in error
    assert "preparing" not in out
    _, out, error = lra_data("hunt", "series")
    assert "a hunt looks for ids, and task 'series' has numbers" in error
    assert "preparing" not in out
    missing = tmp_path / "cifar.tar.gz"
    _, out, error = lra_data("baseline", "image", "source=files", f"path={missing}")
    assert f"{missing} does not exist" in error
    assert "preparing" not in out
