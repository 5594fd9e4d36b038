"""A kernel is compared with its reference before it is used: fakes on a CPU play the GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import luna
from luna.kernels import checked, cpu
from luna.kernels import luna_attention as fused


@pytest.fixture(autouse=True)
def nothing_compared_yet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checked, "LEFT_OUT", set())
    monkeypatch.setattr(checked, "_compared", set())


KERNELS = {
    "right": (lambda x: 2 * x.exp(), None),
    "wrong": (lambda x: 2.02 * x.exp(), "differs from its reference by 1.0e-02, 1.0e-02"),
    "nan": (lambda x: x * torch.nan, "differs from its reference by nan"),
    "gradient": (lambda x: 2 * (1.01 * x - 0.01 * x.detach()).exp(), ", 1.0e-02"),
    "failing": (lambda x: torch.ops.luna.missing(x), "ends with AttributeError"),
}


@pytest.mark.parametrize(("kernel", "reason"), KERNELS.values(), ids=KERNELS)
def test_a_wrong_kernel_is_left_out_with_one_warning(kernel, reason: str | None, caplog):
    sizes: list[int] = []

    def reference(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return 2 * x.exp()

    for size in (100, 128, 100, 200):  # 100 and 128 are of one class
        x = torch.linspace(-1, 1, size)
        assert checked.is_right("fake", kernel, reference, [x]) is (reason is None)
    assert sizes == ([100, 100] if reason else [100, 100, 200, 200])  # in float64 and in float32
    assert [reason in message for message in caplog.messages] == ([True] if reason else [])


@pytest.mark.skipif(not cpu.AVAILABLE, reason="the fake is the kernel of the CPU, by numba")
@pytest.mark.parametrize(("factor", "evaluation"), [(1, "fused"), (1.01, "piecewise")])
def test_luna_goes_on_without_a_wrong_kernel(factor: float, evaluation: str, monkeypatch):
    kernels = fused.attend
    monkeypatch.setattr(fused, "on_gpu", lambda device: True)
    monkeypatch.setattr(fused, "on_cpu", lambda device: False)
    monkeypatch.setattr(fused, "attend", lambda *t: (factor * kernels(*t)[0], *kernels(*t)[1:]))
    method = luna.build("luna", n_heads=2, head_dim=4, max_len=9)
    q, k, v = torch.randn(3, 2, 2, 9, 4, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    with torch.inference_mode():
        torch.testing.assert_close(method(q, k, v, mask), method.matrix(q, k, mask) @ v)
    assert method.evaluation("cpu") == evaluation
