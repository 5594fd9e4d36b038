"""`lra convert`: configs, folders, mistakes, and two small runs."""

from __future__ import annotations

import json
import runpy
import socket
import sys
from pathlib import Path

import hydra
import pytest
from hydra.errors import HydraException

import luna
from lra.base import hydras
from lra.base.errors import UserError
from lra.base.places import CONFIGS
from lra.report.conversions import conversions
from lra.results.frame import frame_of
from lra.results.record import load_records
from lra.runs import environment
from lra.settings import search_path
from lra.training import conversion
from tests.luna.convert import kit

ROOT = CONFIGS / "convert"
EARLIER = {
    "stage1": "ce",
    "stage1_lr": 1e-2,
    "stage1_steps": 250,
    "batch": 16,
    "lr": 5e-5,
    "phi_lr": "null",
    "epochs": 2,
    "patience": 2,
    "schedule": "linear",
    "max_length": 64,
    "train_examples": 4000,
}


def compose(*overrides: str) -> conversion.Conversion:
    search_path.install(ROOT)
    with hydra.initialize_config_dir(config_dir=str(ROOT), **hydras.of_base()):
        return conversion.check_conversion(hydra.compose("convert", list(overrides)))


@pytest.mark.parametrize(
    ("group", "name"),
    [
        *(("attention", name) for name in luna.names() if not luna.registry.mixes(name)),
        *((g, p.stem) for g in ("model", "recipe") for p in (ROOT / g).glob("*.yaml")),
    ],
)
def test_every_choice_composes(group, name):
    run = compose(f"{group}={name}")
    if group == "attention":
        assert run.attention["name"] == name
        options = {k: v for k, v in run.attention.items() if k != "name" and v is not None}
        luna.build(name, n_heads=2, head_dim=8, max_len=16, **options)
    if group == "model":
        assert run.model.name == name


def test_a_preset_is_its_options():
    """They identify a run, however they are written."""
    listing = {"M": 8, "L": 8, "nonneg": True}
    run = compose("attention.preset=listing", "teacher=some")
    assert run.attention == {"name": "luna", "share": "head"} | listing
    words = [f"attention.{key}={str(value).lower()}" for key, value in listing.items()]
    assert conversion.folder(run) == conversion.folder(compose(*words, "teacher=some"))
    assert compose().attention == {"name": "luna", "share": "head"} | dict.fromkeys(listing)
    with pytest.raises(UserError, match="'luna' has no preset 'listng'; did you mean listing"):
        compose("attention.preset=listng")


def test_each_setting_has_its_folder():
    words = ["teacher=some", "recipe=small"]
    base = conversion.folder(compose(*words))
    assert base == conversion.folder(compose(*words, "data.path=elsewhere"))
    for change in ("attention.M=16", "recipe.lr=1e-4", "layers=last:1", "teacher=other", "seed=1"):
        assert conversion.folder(compose(*words, change)) != base


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["recipe.epoch=3"], "epoch"),
        (["recipe.epochs=many"], "epochs"),
        (["stage=both"], "stage"),
        (["device=tpu"], "device"),
        (["seed=-1"], "seed=-1 is out of range"),
        (["recipe.images.crop=1"], "crop"),
        (["recipe.batch=0"], "batch must be at least 1"),
        (["attention=stack"], "a conversion gives its layers one method, and a stack has one for"),
    ],
)
def test_mistakes_are_refused(overrides, reason):
    with pytest.raises((UserError, luna.LunaError, HydraException), match=reason):
        compose(*overrides)


def test_without_a_teacher_the_command_to_run_is_named(tmp_path):
    with pytest.raises(UserError, match=r"lra convert stage=teacher task=rte model=minilm"):
        conversion.folder(compose("task=rte", "model=minilm", f"runs_dir={tmp_path}"))


@pytest.mark.parametrize("model", ["minilm", "tiny-vit"])
def test_without_a_network_a_model_is_asked_for_once(model, tmp_path, capsys, monkeypatch):
    """The hub's package tries every file six times, and waits for half a minute in between."""
    asked = []

    def fails(host, *_, **__):
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    kit.paint(tmp_path / "images", train=1, val=1)
    task = {"minilm": "mrpc", "tiny-vit": "image_folder"}[model]
    monkeypatch.setattr(socket, "getaddrinfo", fails)
    monkeypatch.setattr(conversion, "HUB", "https://hub.invalid")
    for name in ("HF_ENDPOINT", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    words = [f"task={task}", f"model={model}", f"model.path=nobody/{model}", "stage=teacher"]
    places = [f"data.path={tmp_path}/images", f"runs_dir={tmp_path}/runs"]
    capsys.readouterr()
    with pytest.raises(UserError, match=rf"no model .* from 'nobody/{model}' \(.*: give a local f"):
        conversion.convert(compose(*words, *places))
    assert asked.count("hub.invalid") == 1
    assert len(asked) <= 2  # the other is what the package asks for itself, once
    assert capsys.readouterr().err == ""


def test_the_made_model_is_converted_without_a_network(tmp_path, monkeypatch):
    """By the commands of docs/conversion.md, whatever task is named: it is no score of MRPC."""
    page = (ROOT.parents[1] / "docs/conversion.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if "data.source=tiny" in line]
    assert [line.split()[:2] for line in lines] == [["lra", "convert"]] * 2
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("asked the network"))
    student = compose(*lines[1].split()[2:], f"runs_dir={tmp_path}")
    with pytest.raises(UserError, match=r"`lra convert stage=teacher data\.source=tiny model=tiny"):
        conversion.convert(student)
    made = [
        conversion.convert(compose(*line.split()[2:], "task=mrpc", f"runs_dir={tmp_path}"))
        for line in lines
    ]
    teacher, student = made
    assert teacher["task"] == student["task"] == "tiny"
    assert teacher["score"] > 0.9
    assert student["score"] > 90 > 60 > student["floor"]
    assert student["data"]["fingerprint"] == "tiny-1"
    [table] = conversions(frame_of(load_records([tmp_path])))
    assert table.spec.title == "Conversion of tiny, made sentences"


def test_teacher_and_conversion_from_local_folders(tmp_path, capsys, monkeypatch):
    kit.checkpoint(tmp_path)
    (tmp_path / "SST-2").mkdir()
    rows = ["sentence\tlabel", *(["good film\t1", "bad film\t0"] * 10)]
    for split in ("train", "dev"):
        (tmp_path / "SST-2" / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    common = [
        f"model.path={tmp_path}",
        f"data.path={tmp_path}",
        f"runs_dir={tmp_path}/runs",
        "recipe.epochs=1",
        "recipe.stage1_steps=4",
        "recipe.max_length=8",
    ]
    capsys.readouterr()
    teacher = conversion.convert(compose("stage=teacher", *common))
    printed = capsys.readouterr()
    assert "classifier.weight" in printed.out.splitlines()[0]  # a new head is one line
    assert printed.err == ""
    monkeypatch.setattr(sys, "argv", ["convert.py", "attention=t2r", *common])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT.parents[1] / "convert.py"), run_name="__main__")
    converted = capsys.readouterr()
    assert (stopped.value.code, converted.err) == (0, "")
    last = converted.out.splitlines()[-1]
    record = json.loads(Path(last.rpartition("record ")[2]).read_text(encoding="utf-8"))
    assert f"score {record['score']:.2f}, a constant answer {record['floor']:.2f}" in last
    collapsed = record["score"] <= record["floor"]
    assert ("note: no better than the same answer" in converted.out) == collapsed
    assert list(record["stages"]) == ["teacher", "swap", "stage1", "best", "last"]
    assert record["attention"]["layers"] == "all"
    assert record["git"]["revision"] == environment.git()["revision"]

    # The same again finds the finished run: the new head was seeded.
    again = conversion.convert(compose("stage=teacher", *common))
    assert printed.out.splitlines()[-1] == capsys.readouterr().out.splitlines()[-1]
    assert again == json.loads(json.dumps(teacher))
    with pytest.raises(UserError, match=r"no model can be loaded from '.*/SST-2'"):
        conversion.convert(compose("stage=teacher", *common, f"model.path={tmp_path}/SST-2"))
    with pytest.raises(UserError, match=r"not finetuned on a task, .*classifier\.weight"):
        conversion.convert(compose(*common, f"teacher={tmp_path}"))
    with pytest.raises(luna.LunaError, match="put GLUE's RTE/"):
        conversion.convert(compose("stage=teacher", "task=rte", *common))
    with pytest.raises(luna.LunaError, match="did you mean sst2"):
        conversion.convert(compose("task=sst", *common))


def test_images_from_local_folders(tmp_path, capsys, monkeypatch):
    """The same command with a tiny ViT: a new head for the folder's classes, then a conversion,
    which is killed before it has written its record."""
    root, checkpoint = tmp_path / "images", tmp_path / "vit"
    kit.paint(root, train=4, val=2)
    kit.vit(num_labels=7).save_pretrained(checkpoint)
    kit.processor(checkpoint)
    capsys.readouterr()
    common = [
        "task=image_folder",
        "model=tiny-vit",
        "recipe=paper-vit",
        f"data.path={root}",
        f"model.path={checkpoint}",
        f"runs_dir={tmp_path}/runs",
        "recipe.batch=4",
        "recipe.epochs=1",
        "recipe.stage1_steps=3",
    ]
    teacher = conversion.convert(compose("stage=teacher", *common))
    printed = capsys.readouterr()
    assert "classifier.bias, classifier.weight" in printed.out.splitlines()[0]
    with monkeypatch.context() as patch:
        patch.setattr(conversion, "write_json", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            conversion.convert(compose("attention=t2r", *common))
    record = conversion.convert(compose("attention=t2r", *common))
    [stored] = load_records([tmp_path])
    assert stored.facts == json.loads(json.dumps(record))
    assert printed.err + capsys.readouterr().err == ""
    for text in ("{", json.dumps(stored.facts | {"score": 1.0})):  # damaged; edited
        stored.path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=r"result\.json is damaged or invalid"):
            conversion.convert(compose("attention=t2r", *common))
    assert record["stages"]["teacher"]["score"] == 100 * teacher["score"]
    model = tmp_path / "runs/convert/image_folder/tiny-vit/teacher/seed-0/model"
    assert json.loads((model / "config.json").read_text(encoding="utf-8"))["label2id"]["green"] == 1
    (model / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"a local folder with config\.json, preprocessor_config"):
        conversion.convert(compose("attention=hedgehog", *common))


def test_folders_of_earlier_runs_are_found():
    """Numbers that were added to recipes later do not change the key of earlier runs."""
    words = ["teacher=some", "attention=hedgehog", "stage=convert"]
    numbers = [f"recipe.{k}={v}" for k, v in EARLIER.items()]
    folder = conversion.folder(compose(*words, *numbers))
    assert folder.parts[-2].partition("-")[0] == "c60131cf3e9d"
    for number in ("recipe.select=train_split", "recipe.joint=0.5"):
        assert conversion.folder(compose(*words, *numbers, number)) != folder


def test_a_missing_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="there is no GPU that torch can use"):
        conversion.convert(compose("device=cuda"))
