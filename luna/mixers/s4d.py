"""S4D: a linear system with a diagonal matrix for every channel. Gu et al. (2022),
https://arxiv.org/abs/2206.11893

    s_t = e^z s_(t-1) + b u_t     z = dt A, b = (e^z - 1) / A (zero-order hold), u_t = W_u x_t
    y_t = 2 Re(c . s_t) + d u_t   N / 2 states, one of each pair of conjugates
    out_t = W_o gelu(y_t)         both ways: and 2 Re(c' . s'_(t+1)), s' running from the end

A begins (`init`, section 4 of the paper), for n = 0, 1, ...

    lin    -1/2 + i pi n
    inv    -1/2 + i (N / pi) (N / (2 n + 1) - 1)
    legs   the eigenvalues of HiPPO-LegS without its part of low rank: Re = -1/2
    real   -(n + 1), N real states: decays without oscillation

and c as complex normal, of `legs` times the input of HiPPO-LegS in these coordinates, at most 2 as
in the authors' code: only the product of input and output counts, so the input needs no parameters.

The authors' block has no W_u and ends in a gated map in place of W_o: out_t = (W_1 y') sigmoid(W_2
y') with y' = gelu(y_t) (`output=glu`). With `block=s4` all else is theirs, too (state-spaces/s4
e757cef, modules/s4block.py and kernels/ssm.py in src/models/sequence): u = x; an input b of the
system is trained beside c, 1 at the start, or of `legs` the one above; dt = softplus(log_dt); and
dropout acts on y and on y'. `shared`: A and b are one for all channels, their `n_ssm: 1`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import LunaError, Mask, Mixer, Paper, Place, Rate, Traits, register
from luna.diagonal import convolve, kernel, run
from luna.dropout import Dropout
from luna.surround import Output, cost, output_map

Init = Literal["lin", "inv", "legs", "real"]
Block = Literal["slot", "s4"]
LARGEST_INPUT = 2.0
LARGEST_STEP = 0.1
SLOW = Rate(highest=1e-3, decay=False)


def frequencies(init: Init, N: int) -> Tensor:
    """Im A, (N / 2)."""
    n = torch.arange(N // 2)
    if init == "lin":
        return math.pi * n
    if init == "inv":
        return N / math.pi * (N / (2 * n + 1) - 1)
    return hippo(N)[0]


def hippo(N: int) -> tuple[Tensor, Tensor]:
    """The positive eigenvalues of i (A + p p^T + 1/2) for the matrix A of HiPPO-LegS, falling, and
    the sizes of its input in their coordinates, (N / 2)."""
    degree = 2 * torch.arange(N, dtype=torch.float64) + 1
    root = degree.sqrt()
    below = (root.unsqueeze(1) * root).tril(-1)
    skew = (below.mT - below) / 2  # A_nk = -root_n root_k for k < n, p_n = root_n / sqrt(2)
    values, vectors = torch.linalg.eigh(1j * skew)
    inputs = (vectors.mH @ root.to(vectors.dtype)).abs()
    values, inputs = (t[N // 2 :].flip(0).to(torch.get_default_dtype()) for t in (values, inputs))
    return values, inputs


@register("s4d")
class S4D(Mixer):
    title = "S4D"
    family = "state space"
    marker = "s"
    paper = Paper(
        title="On the Parameterization and Initialization of Diagonal State Space Models",
        year=2022,
        url="https://arxiv.org/abs/2206.11893",
    )
    complexity = "O(n E (E + N + log n))"
    declared = Traits(causal_form=True, equivariant=False, holes_are_time=True)
    rates = dict.fromkeys(("log_dt", "A_*"), SLOW)
    added: ClassVar = {"block": "slot", "shared": False, "dt_min": 1e-3}

    def __init__(
        self,
        place: Place,
        *,
        state: int = 64,
        init: Init = "lin",
        output: Output = "linear",
        block: Block = "slot",
        shared: bool = False,
        dt_min: float = 1e-3,
    ):
        super().__init__(place)
        if state < 2 or state % 2:
            raise LunaError(f"s4d.state must be even and at least 2, got {state}")
        if not 0 < dt_min < LARGEST_STEP:
            raise LunaError(f"s4d.dt_min must be between 0 and {LARGEST_STEP}, got {dt_min}")
        E, self.real, self.block = place.d_model, init == "real", block
        systems, states = 1 if shared else E, state if self.real else state // 2
        # Real numbers alone, for .double() leaves complex parameters as they are.
        low, high = math.log(dt_min), math.log(LARGEST_STEP)
        self.log_dt = nn.Parameter(torch.empty(E).uniform_(low, high))
        if self.real:
            self.A_log_decay = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(systems, 1))
        else:
            self.A_log_decay = nn.Parameter(torch.full((systems, states), math.log(0.5)))
            self.A_frequency = nn.Parameter(frequencies(init, state).repeat(systems, 1))
        scale = torch.ones(1)
        if init == "legs":
            scale = hippo(state)[1].clamp(max=LARGEST_INPUT)
        if block == "s4":
            self._as_published(scale.expand(systems, states))
            scale = torch.ones(1)
        self.c = self._draw((E, states), scale)
        if not self.causal:
            self.c_back = self._draw((E, states), scale)
        self.d = nn.Parameter(torch.randn(E))
        if block == "slot":
            self.inward = nn.Linear(E, E, bias=False)  # so that u is 0 where x is: at padding
        self.outward = output_map(output, E)
        self.drop = Dropout(place.dropout) if block == "s4" else nn.Identity()

    def _traits(self) -> Traits:
        return self.declared.but(uses_dropout=self.block == "s4")

    def _as_published(self, inputs: Tensor) -> None:
        """Make b, which is trained, of its sizes (systems, N or N / 2); steps by softplus."""
        b = inputs.clone()
        self.b = nn.Parameter(b if self.real else torch.stack((b, torch.zeros_like(b)), -1))
        self.rates = self.rates | {"b": SLOW}  # type: ignore[misc]  # the class has no b
        with torch.no_grad():
            self.log_dt.copy_(self.log_dt.exp().expm1().log())

    def _draw(self, shape: tuple[int, int], scale: Tensor) -> nn.Parameter:
        """Normal numbers, real (E, N), or complex of unit variance (E, N / 2, 2)."""
        if self.real:
            return nn.Parameter(torch.randn(shape))
        return nn.Parameter(torch.randn(*shape, 2) * math.sqrt(0.5) * scale.unsqueeze(-1))

    def mix(self, x: Tensor, mask: Mask) -> Tensor:
        """x (B, n, E), 0 at padding: a token that adds nothing, while time goes on."""
        if self.causal:  # an FFT's rounding would carry later tokens into earlier outputs
            return self.mix_from(None, x, mask)[1]
        u, (z, b) = self._in(x), self.system()
        both = (self.taken(c) * b for c in (self.c, self.c_back))
        ahead, back = (kernel(weights, z, x.shape[1]) for weights in both)
        return self._out(convolve(u.mT, ahead, back).mT, u)

    def mix_from(self, state: Any, x: Tensor, mask: Mask) -> tuple[Any, Tensor]:
        """The state s (B, E, N / 2 or N) after these tokens, and their outputs."""
        u, (z, b) = self._in(x), self.system()
        s, y = run(u, z, b, self.taken(self.c), None if state is None else state[0])
        return (s,), self._out(y, u)

    def _in(self, x: Tensor) -> Tensor:
        return self.inward(x) if self.block == "slot" else x

    def _out(self, y: Tensor, u: Tensor) -> Tensor:
        return self.outward(self.drop(F.gelu(self.drop(y + self.d * u))))

    def system(self) -> tuple[Tensor, Tensor]:
        """z and b, (E, N / 2 or N). e^z - 1 is written without the cancellation of a small z."""
        published = self.block == "s4"
        dt = (F.softplus(self.log_dt) if published else self.log_dt.exp()).unsqueeze(-1)
        decay = -self.A_log_decay.exp()
        if self.real:
            b = torch.expm1(dt * decay) / decay
            return dt * decay, b * self.b if published else b
        A = torch.complex(decay, self.A_frequency)
        z = dt * A
        real = torch.expm1(z.real) * z.imag.cos() - 2 * (z.imag / 2).sin().square()
        b = torch.complex(real, z.real.exp() * z.imag.sin()) / A
        return z, b * torch.view_as_complex(self.b) if published else b

    def taken(self, c: Tensor) -> Tensor:
        """What the output takes of a state, whose real part counts: of a pair of conjugates 2 c."""
        return c if self.real else 2 * torch.view_as_complex(c)

    def flops(self, x: Tensor, *_: Any) -> int:
        """Projections, kernels (2 a multiply-add, 8 a complex one), 3 FFTs, a product of
        spectra."""
        B, n, E = x.shape
        directions = 1 if self.causal else 2
        kernels = (2 if self.real else 8) * directions * E * self.A_log_decay.shape[1] * n
        fft = E * (3 * 5 * n * math.ceil(math.log2(2 * n)) + 6 * (n + 1))
        maps = cost(self.outward) + (E * E if self.block == "slot" else 0)
        return B * (2 * n * maps + kernels + fft)
