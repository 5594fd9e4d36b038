"""What a notebook has set in torch before: it moves no training, and is as it was afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import lra
from lra.training.checkpoints import SIGNALS

from ..conftest import SMALL

BACKENDS = torch.backends
SHORT = ("protocol.recipe.steps=4", "protocol.evaluation.every=2")
EXPRESSIONS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "7"]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


@contextmanager
def precision(backend: Any, name: str) -> Iterator[None]:
    before = backend.fp32_precision
    backend.fp32_precision = name
    yield
    backend.fp32_precision = before


STATES = {
    "nothing": ExitStack,
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default dtype bfloat16": lambda: default_dtype(torch.bfloat16),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default device meta": lambda: torch.device("meta"),
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "products of float32 in bfloat16": lambda: precision(BACKENDS.mkldnn.matmul, "bf16"),
    "TF32 by the newer switch": lambda: precision(BACKENDS.cuda.matmul, "tf32"),
}


def state() -> tuple[Any, ...]:
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
        BACKENDS.cuda.matmul.fp32_precision,
        BACKENDS.cudnn.conv.fp32_precision,
        BACKENDS.mkldnn.matmul.fp32_precision,
    )


def trained_in(runs: Path, data_dir: Path) -> lra.Record:
    return lra.train(
        lra.compose([*SMALL, *SHORT, f"data_dir={data_dir}", f"runs_dir={runs}", "attention=luna"])
    )


@pytest.fixture(scope="module")
def usual(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> lra.Record:
    return trained_in(tmp_path_factory.mktemp("usual"), data_dir)


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_torch_moves_no_training(
    name: str, usual: lra.Record, data_dir: Path, tmp_path: Path
):
    torch.manual_seed(3)
    with STATES[name]():
        before = state()
        record = trained_in(tmp_path, data_dir)
        assert state() == before
    assert record["identity"] == usual["identity"]
    assert record["stages"] == usual["stages"], "with the digest of the weights"


@pytest.mark.parametrize("name", STATES)
def test_nor_what_a_trained_network_answers(name: str, usual: lra.Record):
    expected = lra.load(usual).predict(EXPRESSIONS).probabilities
    torch.manual_seed(3)
    with STATES[name]():
        before = state()
        trained = lra.load(usual)
        assert (trained.predict(EXPRESSIONS).probabilities == expected).all()
        assert trained.evaluate().digests() == usual["answers"]
        assert trained.attention_maps(EXPRESSIONS[0]).weights.dtype == torch.float32
        assert state() == before


def test_what_is_drawn_after_a_training_is_the_notebooks(data_dir: Path, tmp_path: Path):
    drawn = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        trained_in(tmp_path / str(seed), data_dir)
        drawn.append(torch.rand(()).item())
        torch.manual_seed(seed)
        assert drawn[-1] == torch.rand(()).item()
    assert drawn[0] != drawn[1]


def in_a_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor() as pool:
        return pool.submit(function).result(120)


def test_a_thread_trains_what_the_process_does(usual: lra.Record, data_dir: Path, tmp_path: Path):
    """A server, or an executor; signals are the main thread's and stay as they are."""
    handlers = [signal.getsignal(signum) for signum in SIGNALS]
    record = in_a_thread(lambda: trained_in(tmp_path, data_dir))
    assert record["stages"] == usual["stages"]
    assert [signal.getsignal(signum) for signum in SIGNALS] == handlers


def test_a_limit_of_time_needs_the_main_thread(small):
    with pytest.raises(lra.UserError, match=r"limit_minutes .* only the main thread"):
        in_a_thread(lambda: lra.train(small("limit_minutes=5")))
