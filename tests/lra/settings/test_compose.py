"""Every config composes, every key is read, every mistake is one sentence."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf

import luna
from lra.base import hydras
from lra.base.errors import UserError, readable
from lra.base.limits import Range
from lra.base.places import CONFIGS
from lra.settings.compose import check_again, check_settings, command_of, compose
from lra.settings.errors import guard
from lra.settings.experiment import plain
from lra.settings.presets import AROUND, NO_OPTIONS
from lra.settings.run import Run
from lra.settings.search_path import initialised
from lra.training.run import train

from ..conftest import command

GROUPS = (
    "task",
    "attention",
    "around",
    "model",
    "protocol",
    "pretrain",
    "compute",
    "trainer",
    "optimizer",
    "schedule",
    "callbacks",
    "logger",
    "debug",
    "sweep",
    "experiment",
)


# The protocols of tasks that protocol=luna does not train.
PROBES = ("recall", "single", "fuzzy", "memorise", "hops", "forgetting", "spatial", "group")
PROTOCOLS = dict.fromkeys(PROBES, "recall") | {"bytes": "bytes"}


def files(group: str) -> list[str]:
    return sorted(p.stem for p in (CONFIGS / group).glob("*.yaml"))


# Attentions are composed below, with a look at their options.
CHOICES = [(g, n) for g in GROUPS if g != "attention" for n in files(g)]


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_every_file_composes_and_passes_the_schema(group: str, name: str):
    task = next((t for t in files("task") if _has_row(group, name, t)), "listops")
    words = [f"{group}={name}"]  # an experiment names its task itself
    words += [f"task={task}"] if group not in ("task", "experiment") else []
    own = PROTOCOLS.get(name if group == "task" else task)
    if own and group != "protocol":
        words.append(f"protocol={own}")
    if group == "protocol":  # those of calibration refuse the default attention
        words += ["attention=s4d" if name == "s4" else "attention=softmax"]
    run = compose(words)
    names = {"task": run.task.name, "attention": run.attention["name"], "model": run.model.name}
    assert names.get(group, name) == name


def _has_row(group: str, name: str, task: str) -> bool:
    if group == "experiment":
        return task == "listops"
    if group not in ("protocol", "model"):
        return True
    table = OmegaConf.load(CONFIGS / group / f"{name}.yaml").get("tasks")
    return not table or task in table


@pytest.mark.parametrize("launcher", [p.stem for p in (CONFIGS / "hydra/launcher").glob("*.yaml")])
def test_every_launcher_composes_and_its_target_resolves(launcher: str):
    with hydra.initialize_config_dir(config_dir=str(CONFIGS), **hydras.of_base()):
        cfg = hydra.compose("train", [f"hydra/launcher={launcher}"], return_hydra_config=True)
    assert callable(hydra.utils.get_class(cfg.hydra.launcher._target_))


# Options whose published value is not the default, and why.
READS_X = "published, it needs the hidden states, which a function of q, k, v has not"
GATED = "published, a gated map, which the other methods have not"
NOT_PUBLISHED = {
    ("deltanet", "gates"): READS_X,
    ("ema", "lag0"): "published, a token counts twice and there is no causal form",
    ("fastfood", "init"): "published, all weights begin equal",
    ("gated_deltanet", "gates"): READS_X,
    ("gla", "gates"): READS_X,
    ("hydra", "gates"): READS_X,
    ("hydra", "tie"): "published, each direction has its own steps, and the causal form has one",
    ("kda", "gates"): READS_X,
    ("kda", "rank"): "published, the width of a head, which a map of a head's key need not have",
    ("lion", "gates"): READS_X,
    ("longconv", "kernel_dropout"): "published, training leaves out lags, at random",
    ("longconv", "output"): GATED,
    ("lru", "output"): GATED,
    ("mega", "lag0"): "published, a token counts twice, as in ema",
    ("mlstm", "gates"): READS_X,
    ("s4d", "init"): "published, the eigenvalues of a matrix; lin is their plainest approximation",
    ("s4d", "output"): GATED,
}


def test_what_stands_around_any_attention_is_what_the_file_says():
    file = OmegaConf.to_container(OmegaConf.load(CONFIGS / "train.yaml"))["attention"]
    assert {key: file[key] for key in AROUND} == AROUND


# What each choice of `around` is, in words of `attention`.
PRESETS = {
    "none": [],
    "local": ["dwc=conv1d"],
    "conv": ["short_conv=4"],
    "normed": ["head_norm=true"],
    "gated": ["head_norm=true", "gate=full"],
    "conv_gated": ["short_conv=4", "head_norm=true", "gate=full"],
}


@pytest.mark.parametrize("name", files("around"))
def test_a_choice_of_around_is_its_words(name: str):
    run = compose(["attention=gla", f"around={name}"])
    assert run.attention == compose(["attention=gla", *spelt(PRESETS[name])]).attention


def spelt(words: list[str]) -> list[str]:
    return [f"attention.{word}" for word in words]


def test_a_word_goes_over_the_choice_of_around():
    run = compose(["attention=gla", "around=conv_gated", "attention.gate=low_rank"])
    assert (run.attention["gate"], run.attention["short_conv"]) == ("low_rank", 4)


def test_every_attention_has_a_config_with_exactly_its_options():
    """Their published values are the constructor's defaults: the same on every task, or on some
    where they depend on the task."""
    assert set(files("attention")) == set(luna.names())
    for name in luna.names():
        file = OmegaConf.to_container(OmegaConf.load(CONFIGS / "attention" / f"{name}.yaml"))
        options = {key: value for key, value in file.items() if key not in NO_OPTIONS}
        presets = file.get("presets", {})
        defaults = {key: plain(p.default) for key, p in luna.options(name).items()}
        assert set(options) == {"name", *defaults}, name
        looked_up = {key for key, value in options.items() if value == "???"}
        missing = looked_up - presets.get("published", {}).keys()
        unknown = {key for values in presets.values() for key in values} - looked_up
        assert not missing, name
        assert unknown <= {"exempt"}, name
        options |= presets.get("published", {})
        for key, default in defaults.items():
            value = options[key]
            same = default in value.values() if isinstance(value, dict) else default == value
            assert same != ((name, key) in NOT_PUBLISHED), (name, key)


# Found by Hydra, or while it composes.
UNKNOWN = {
    "a task": (["task=listop"], "unknown task 'listop'; did you mean listops?"),
    "an attention": (["attention=lunna"], "unknown attention 'lunna'; did you mean luna"),
    "a group": (["atention=luna"], "'atention'"),
    "a key": (["model.n_layrs=3"], "'model.n_layrs' is not a setting; did you mean n_layers"),
    "an option of an attention": (["attention.MM=3"], "attention 'luna' has no option 'MM'"),
    "an option of a task": (["task.sourc=tiny"], "'task.sourc' is not a setting; did you mean so"),
    "a setting without its group": (["lr=0.1"], "not a setting; did you mean protocol.recipe.lr?"),
    "the other case": (["attention.m=4"], "attention 'luna' has no option 'm'; did you mean M?"),
    "no setting at all": (["listops"], "'listops' is no setting: write key=value"),
    "spaces": (["attention = luna"], "is no setting: write key=value, without spaces"),
    "two values": (["seed=1,2"], "add -m to run each of them"),
    "a word of earlier versions": (
        ["budget=0.1"],
        "the share of a protocol's steps is steps_share",
    ),
    "an appended top-level key": (["+speed=3"], "'speed' is not a setting"),
    "a profile as an option": (
        ["attention=luna", "+attention.profile=published"],
        "attention.profile cannot be set here: protocol.profile decides it",
    ),
    "heads as an option": (["+attention.n_heads=3"], "model.n_heads decides it"),
    "a task of a protocol": (
        ["task=pathx", "protocol=skyformer", "attention=softmax"],
        "no row that fits task 'pathx'",
    ),
}
# Found when the composed config is checked.
WRONG = {
    "model.n_layers=two": "model.n_layers",
    "steps_share=lots": "steps_share",
    "protocol.style.pooling=max": "protocol.style.pooling",
    "task.source=internet": "no source 'internet'",
    "attention.preset=publishd": "'luna' has no preset 'publishd'; did you mean published?",
    "compute.mode=strict": "compute.mode",
    "compute.tolerance.flops=0": "it must be greater than 0 and at most 1",
    "compute.tolerance.parameters=1.5": "compute.tolerance.parameters=1.5 is out of range",
    "compute.reference={parameters: many}": "it must be an attention, or numbers",
    "compute.reference={seconds: 3}": "it must be an attention, or numbers",
    'compute={mode: "off", solve: true}': "solve=True is out of range: it must be false under",
    "steps_share=0": "steps_share=0.0 is out of range: it must be finite and greater than 0",
    "steps_share=inf": "steps_share=inf is out of range",
    "trainer.threads=-1": "trainer.threads=-1 is out of range: it must be at least 1",
    "trainer.strategy=foo": "trainer.strategy=foo is out of range: it must be one of auto, ddp,",
    "trainer.precision=32": "trainer.precision=32 is out of range: it must be one of 32-true,",
    "trainer.devices=['cuda:0']": "it must be how many devices, such as 2, or a list of which ones",
    "trainer.devices=[-1]": "it must be how many devices, such as 2, or a list of which ones",
    "trainer.progress=xyz": "it must be one of auto, bar, lines, off",
    "protocol.recipe.betas=[0.9]": "betas=[0.9] is out of range: it must be two numbers in [0, 1)",
    "protocol.recipe.weight_decay=-1": "weight_decay=-1.0 is out of range: it must be at least 0",
    "seed=-1": "seed=-1 is out of range",
    "protocol.data.max_length=99999": "protocol.data.max_length",
    "model.n_heads=3": "model.n_heads=3 is out of range",
    "attention.dwc=conv3d": "attention.dwc=conv3d is out of range: it must be none, conv1d,",
    "attention.normalise=max": "attention.normalise=max is out of range: it must be sum, abs",
    "attention.short_conv=long": "attention.short_conv=long is out of range: it must be a whole",
    "attention.head_norm=2": "attention.head_norm=2 is out of range: it must be true or false",
    "attention.gate=half": "attention.gate=half is out of range: it must be none, full or low_rank",
    "model.dropout=1.0": "model.dropout=1.0 is out of range",
    "model.d_model=0": "model.d_model=0 is out of range",
    "protocol.recipe.clip_at=0": "protocol.recipe.clip_at=0.0 is out of range",
    "protocol.evaluation.dev_batches=0": "it must be at least 1, or -1 for the whole dev split",
    "protocol.evaluation.dev_batches=-2": "dev_batches=-2 is out of range",
    "steps_share=1e300": "steps_share=1e+300 is out of range: it must be at most 1000",
    "compute.reference={flops: .inf}": "it must be an attention, or numbers",
    "protocol.name=my protocol": "protocol.name=my protocol is out of range: it must be a name of",
    "protocol.name=../../../x": "because it is part of paths and tables",
    "protocol.name=''": "because it is part of paths and tables",
    "model.name=..": "because it is part of paths and tables",
    f"model.name={'x' * 101}": "because it is part of paths and tables",
}
# What a number may be beside the usual: 0 leaves a size to the task, -1 takes all of dev.
ALLOWED = {"protocol.evaluation.dev_batches": (-1,)}


def numbers_in(schema: type, above: str = "") -> Iterator[tuple[str, type, list[Range]]]:
    """Every setting of a run that is a number, by its dotted name, with its ranges."""
    hints = typing.get_type_hints(schema)
    for place in dataclasses.fields(schema):
        hint = hints[place.name]
        for kind in typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,):
            if dataclasses.is_dataclass(kind):
                yield from numbers_in(kind, f"{above}{place.name}.")
            elif kind in (int, float):
                yield f"{above}{place.name}", kind, place.metadata.get("ranges", ())


@pytest.fixture(scope="module")
def typical() -> Run:
    return compose(["task.source=tiny"])


@pytest.mark.parametrize(("setting", "kind", "limits"), [*numbers_in(Run)])
def test_every_number_has_a_range(setting: str, kind: type, limits: list[Range], typical):
    """nan and inf pass a comparison that is written the other way round."""
    impossible = [-1, -(2**40), 10**30] if kind is int else [math.nan, math.inf, -math.inf, -1.0]
    for value in impossible:
        allowed = value in ALLOWED.get(setting, ()) or any(
            not limit.allowed(value, typical) for limit in limits
        )
        assert allowed, f"{setting}={value}"


def test_a_setting_is_held_to_its_own_range_before_it_is_held_to_others():
    with pytest.raises(UserError, match=r"^model\.qkv_dim=-1 is out of range: it must be at least"):
        compose(["model.qkv_dim=-1"])


def test_too_many_brackets_are_one_sentence():
    with pytest.raises(UserError, match="too many brackets"):
        compose([f"+x={'[' * 3000}{']' * 3000}"])


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_is_unknown_is_one_sentence_and_exit_code_2(what: str, capsys):
    words, sentence = UNKNOWN[what]
    assert guard(lambda: compose(words)) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def defaults() -> DictConfig:
    with initialised():
        return hydra.compose("train")


@pytest.mark.parametrize("word", WRONG)
def test_a_wrong_value_is_one_sentence(word: str, defaults):
    with pytest.raises(UserError) as error:
        check_settings(OmegaConf.merge(defaults, OmegaConf.from_dotlist([word])))
    assert WRONG[word] in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def read_a_large_file() -> None:
    with readable("a.jsonl", "it holds no records"):
        bytearray(2**60)


def load_torch() -> None:  # with ulimit -v 400000
    raise ImportError("libtorch_cpu.so: failed to map segment from shared object")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (lambda: bytearray(2**60), "not enough memory (MemoryError): choose a smaller"),
        (read_a_large_file, "a.jsonl cannot be read: there is too little memory for it"),
        (load_torch, "failed to map segment from shared object): see ulimit -v"),
    ],
)
def test_too_little_memory_is_one_sentence(command: Callable[[], Any], said: str, capsys):
    assert guard(command) == 2
    assert said in capsys.readouterr().err


def test_the_command_line_says_a_methods_mistake():
    done = command("train.py", "attention.M=eight", "task.source=tiny")
    assert done.returncode == 2
    *counting, said = done.stderr.splitlines()  # a busy machine may say that it counts
    assert said == "error: luna.M must be int, got 'eight'"
    assert counting in ([], ["counting parameters and FLOPs ..."])


def test_what_composing_does_not_see_is_refused_when_the_run_starts():
    with pytest.raises(luna.LunaError, match=r"luna\.M must be int"):
        train(compose(["attention.M=eight", "task.source=tiny"]))
    with pytest.raises(UserError, match="run `lra data prepare image --data-dir nowhere`"):
        train(compose(["task=image", "data_dir=nowhere"]))


def test_help_config_and_mistakes_import_nothing_heavy():
    code = (
        "import sys\n"
        "from lra.cli import main\n"
        "for words in (['--help'], ['--cfg', 'job'], ['model.n_layrs=3']):\n"
        "    try: main(['train', *words])\n"
        "    except SystemExit: pass\n"
        "    heavy = {'torch', 'pytorch_lightning', 'tensorflow_datasets'} & set(sys.modules)\n"
        "    assert not heavy, (words, heavy)"
    )
    done = command("-c", code)
    assert done.returncode == 0, done.stderr
    assert "experiment=demo" in done.stdout
    assert "n_layers: 2" in done.stdout
    assert "'model.n_layrs' is not a setting; did you mean n_layers" in done.stderr


def test_the_budget_scales_steps_warmup_and_evaluations_together():
    full = compose(["task=listops"])
    tenth = compose(["task=listops", "steps_share=0.1"])
    recipe, whole = tenth.protocol.recipe, full.protocol.recipe
    assert recipe.steps == whole.steps // 10
    assert recipe.warmup == whole.warmup // 10
    assert recipe.steps % tenth.protocol.evaluation.every == 0
    assert recipe.steps // tenth.protocol.evaluation.every >= tenth.min_evaluations
    longer = compose(["protocol.recipe.steps=2500", "protocol.evaluation.every=1000"]).protocol
    assert (longer.recipe.steps, longer.evaluation.every) == (3000, 1000)  # ends at an evaluation


def test_a_run_of_python_knows_its_words_and_is_checked_again():
    words = ["task=listops", "attention=linear", "seed=3"]
    run = compose(words)
    assert command_of(run) == "lra train task=listops attention=linear seed=3"
    check_again(run)
    run.protocol.recipe.lr = 0.5
    assert command_of(run) == "lra train task=listops attention=linear seed=3, changed in Python"
    run.protocol.recipe.lr = -1.0
    with pytest.raises(UserError, match=r"protocol\.recipe\.lr=-1\.0 is out of range"):
        check_again(run)
    run.protocol.recipe.lr = "fast"
    with pytest.raises(UserError, match="lr must be a number, got 'fast'"):
        check_again(run)
