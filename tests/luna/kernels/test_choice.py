"""The choice among evaluations on a GPU, with fakes on a CPU that counts as one."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import luna
from luna.kernels import choice
from luna.linear import KernelAttention

F32 = torch.float32
Way = Callable[[Tensor], Tensor]
SIZE = choice.Size(2, 2, 12, 4, 4, masked=True, gradients=True, dtype=F32)
CPU = torch.device("cpu")
clock = 0.0  # seconds: only `slow` lets them pass, so a busy machine changes no choice


class Fakes:
    """An attention that multiplies by its parameter, in the given ways."""

    name = "fakes"

    def __new__(cls, **ways: Way) -> KernelAttention:
        method = luna.build("t2r", n_heads=2, head_dim=4, max_len=16)
        assert isinstance(method, KernelAttention)
        calls: list[str] = []

        def attend_by(way: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
            calls.append(way)
            return ways[way]((q * k).sum(-1, keepdim=True) * v * weight(method).mean())

        method.ways = lambda device: tuple(ways)  # type: ignore[method-assign]
        method.attend_by = attend_by  # type: ignore[method-assign]
        method.calls = calls  # type: ignore[assignment]
        return method


def weight(method: KernelAttention) -> Tensor:
    return next(method.parameters())


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad * 1.01


def right(x: Tensor) -> Tensor:
    return x * 1.0


def slow(x: Tensor) -> Tensor:
    global clock
    clock += 0.02
    return x * 1.0


def crash(x: Tensor) -> Tensor:
    raise RuntimeError("no kernel image is available")


def full(x: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("64 GiB")


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The CPU counts as a GPU, the clock is ours, and choices are kept in an empty folder."""
    monkeypatch.setattr(choice, "DEVICES", {"cpu"})
    monkeypatch.setattr(choice, "time", SimpleNamespace(perf_counter=lambda: clock))
    monkeypatch.setenv(choice.FOLDER, str(tmp_path / "choices"))
    return tmp_path / "choices"


def notes(folder: Path) -> list[dict]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in folder.iterdir()]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda x: x * 1.01, "differs from the definition by 1.0e-02"),
        (lambda x: x * float("nan"), "differs from the definition by nan"),
        (WrongGradient.apply, "differs from the definition by"),
        (crash, "no kernel image is available"),
    ],
    ids=["output", "nan", "gradient", "crash"],
)
def test_the_fastest_right_one_is_kept_and_others_are_named(wrong: Way, why: str, gpu, caplog):
    with caplog.at_level(logging.WARNING, "luna"):
        assert choice.choose(Fakes(slow=slow, wrong=wrong, right=right), SIZE, CPU) == "right"
    (note,) = notes(gpu)
    assert set(note["seconds"]) == {"slow", "right"}
    assert why in note["left_out"]["wrong"]
    (said,) = caplog.messages
    assert "its evaluation 'wrong' is left out" in said
    assert "please report this with the file " + str(gpu) in said

    again = Fakes(slow=slow, wrong=wrong, right=right)
    with caplog.at_level(logging.WARNING, "luna"):
        assert choice.choose(again, SIZE, CPU) == "right"
    assert again.calls == []  # known from the disk, by a new object
    assert len(caplog.messages) == 1


def taking(seconds: float, *, a_token: bool = False) -> Way:
    def way(x: Tensor) -> Tensor:
        global clock
        clock += seconds * (x[..., 0].numel() if a_token else 1)
        return x * 1.0

    return way


def test_a_trial_makes_few_calls_and_fewer_of_slow_ones():
    """The definition: exact, rounded; each: on a part of the tokens (twice), whole. Then they are
    timed, up to three times or for a tenth of a second."""
    method = Fakes(definition=taking(0), slow=taking(0.06), slower=taking(0.5))
    choice.choose(method, SIZE, CPU)
    assert Counter(method.calls) == {"definition": 3 + 4, "slow": 3 + 2, "slower": 3 + 1}


@pytest.mark.parametrize("quick", [2e-8, 2e-4], ids=["one-quick", "all-slow"])
def test_a_trial_is_short_whatever_a_call_takes(quick: float, gpu):
    """What a call at full size would take is known from the part: 4 s and more are not spent."""
    method = Fakes(definition=taking(8e-6, a_token=True), other=taking(quick, a_token=True))
    large = SIZE._replace(B=64, n=4096)
    part = large.checked
    assert part.B * part.n * part.H <= choice.CHECKED
    start = clock
    assert choice.choose(method, large, CPU) == ("other" if quick < 8e-6 else "definition")
    on_part = part.B * part.n * part.H * (3 * 8e-6 + 2 * quick)
    assert clock - start - on_part < choice.BUDGET
    assert notes(gpu)[0]["seconds"]["definition"] == pytest.approx(64 * 4096 * 2 * 8e-6)


def test_what_does_not_fit_into_memory_is_no_fault(gpu, caplog):
    assert choice.choose(Fakes(slow=slow, full=full), SIZE, CPU) == "slow"
    assert notes(gpu)[0]["left_out"] == {"full": "out of memory"}
    assert not caplog.messages


def test_an_ill_conditioned_definition_is_its_own_measure():
    """Float32 loses most digits of this function: the definition must not be called wrong."""
    method = Fakes(
        definition=lambda x: (x + 1e5) - 1e5,
        other=lambda x: (x + 0.9e5) - 0.9e5,
        wrong=lambda x: -x,
    )
    assert choice.choose(method, SIZE, CPU) in ("definition", "other")


@pytest.mark.parametrize(
    ("pid", "left_out"), [(2**22 + 1, True), (1, False)], ids=["dead", "alive"]
)
def test_what_ended_a_process_is_left_out_by_the_next(pid: int, left_out: bool, gpu, caplog):
    """A broken context or a hang cannot be caught; the process writes what it tries."""

    def dies(x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        choice.choose(Fakes(slow=slow, right=dies), SIZE, CPU)
    (path,) = gpu.iterdir()
    note = json.loads(path.read_text(encoding="utf-8"))
    assert note["trying"][0] == "right"
    note["trying"][2] = pid
    path.write_text(json.dumps(note), encoding="utf-8")
    chosen = choice.choose(Fakes(slow=slow, right=right), SIZE, CPU)
    assert chosen == ("slow" if left_out else "right")
    assert ("a process ended while it tried this" in caplog.text) is left_out


def test_seconds_of_a_trial_that_was_cut_short_do_not_count(gpu):
    choice.choose(Fakes(slow=slow, right=right), SIZE, CPU)
    (path,) = gpu.iterdir()
    note = json.loads(path.read_text(encoding="utf-8"))
    del note["way"]
    note |= {"seconds": {"slow": -1.0, "wrong": -1.0}, "left_out": {"wrong": "it differs"}}
    path.write_text(json.dumps(note), encoding="utf-8")
    ways = {"slow": slow, "wrong": crash, "right": right}
    assert choice.choose(Fakes(**ways), SIZE, CPU) == "right"


def test_a_damaged_or_unwritable_folder_costs_only_time(gpu, monkeypatch, tmp_path):
    assert choice.choose(Fakes(slow=slow, right=right), SIZE, CPU) == "right"
    (path,) = gpu.iterdir()
    path.write_text('{"way": "ri', encoding="utf-8")
    assert choice.choose(Fakes(slow=slow, right=right), SIZE, CPU) == "right"
    (tmp_path / "file").touch()
    monkeypatch.setenv(choice.FOLDER, str(tmp_path / "file"))
    assert choice.choose(Fakes(slow=slow, right=right), SIZE, CPU) == "right"


def call(method: KernelAttention, n: int = 12, B: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    q, k, v = (torch.randn(B, 2, n, 4, generator=generator) for _ in range(3))
    return method(q, k, v)


def test_each_class_of_shapes_is_tried_once_and_the_run_is_left_as_it_was(gpu):
    method, twin = (Fakes(slow=slow, right=right) for _ in range(2))
    twin.load_state_dict(method.state_dict())
    state = torch.get_rng_state()
    out = call(method)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in method.parameters())
    assert torch.equal(out, twin.attend_by("right", *_qkv(), None))
    tried = len(method.calls)
    call(method)
    call(method, n=16)  # of the same class as 12
    assert method.calls[tried:] == ["right"] * 2
    call(method, n=17)
    assert len(method.calls) > tried + 3
    with torch.inference_mode():  # without gradients another one may be faster
        call(method)
    assert len(notes(gpu)) == 3


def _qkv(n: int = 12) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(2, 2, n, 4, generator=generator) for _ in range(3)]


def test_rules_decide_if_asked_to_and_in_deterministic_mode(monkeypatch):
    method = Fakes(whole=right, fast=right)
    monkeypatch.setenv(choice.SWITCH, "off")
    call(method)
    monkeypatch.delenv(choice.SWITCH)
    torch.use_deterministic_algorithms(True)
    try:
        call(method)
    finally:
        torch.use_deterministic_algorithms(False)
    assert method.calls == ["whole"] * 2
    assert method.evaluation("cpu") is None
    call(method)
    assert len(method.calls) > 3


def test_nothing_is_tried_on_a_cpu(monkeypatch):
    monkeypatch.setattr(choice, "DEVICES", {"cuda"})
    method = Fakes(whole=right, fast=right)
    call(method)
    assert method.calls == ["whole"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["linear", "t2r", "performer_relu", "cosformer", "hedgehog", "rff",
                                  "based", "rebased"])  # fmt: skip
def test_every_method_with_two_evaluations_can_be_tried(name: str, causal: bool, gpu):
    method = luna.build(name, n_heads=2, head_dim=4, max_len=16, causal=causal)
    if len(method.ways("cuda")) > 1:
        call(method)
        (note,) = notes(gpu)
        assert set(note["seconds"]) == {"whole", "blocks"}
        assert method.evaluation("cpu") in ("whole", "blocks")


@pytest.mark.parametrize(
    "options",
    [{}, {"share": "head", "nonneg": False}, {"ch_rms": True}, {"envelope": "scalar"},
     {"kernel": "bank_coef"}],
    ids=str,
)  # fmt: skip
def test_lunas_evaluations_are_tried_and_the_record_names_the_one_that_ran(options, gpu, caplog):
    method = luna.build("luna", n_heads=2, head_dim=4, max_len=16, **options)
    assert method.ways("cpu") == ("dense", "piecewise")
    out = call(method)
    (note,) = notes(gpu)
    assert set(note["seconds"]) == {"dense", "piecewise"}, caplog.text
    assert method.evaluation("cpu") in note["seconds"]
    assert torch.allclose(out, method.attend_by("dense", *_qkv(), None), atol=1e-4)
    asked = luna.build("luna", n_heads=2, head_dim=4, max_len=16, evaluate="piecewise", **options)
    call(asked)
    assert asked.evaluation("cpu") == "piecewise"
    assert len(notes(gpu)) == 1


def test_a_compiled_graph_takes_the_last_choice():
    method = Fakes(whole=slow, fast=right)
    call(method)
    tried = len(method.calls)
    torch.compile(lambda q, k, v: method(q, k, v), backend="eager")(*_qkv())
    assert method.calls[tried:] == ["fast"]
