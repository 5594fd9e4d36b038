"""Where an operator is called without torch.library.

torch.compile, torch.func and the modes of torch that see every call need an operator of
torch.library. It adds 0.2 ms to a call, forward and backward alike, in which a core reads 500
tokens. So where nobody looks an autograd.Function calls the same kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode


def is_unseen(*tensors: Tensor) -> bool:
    """Say whether kernels may be called on these tensors, on a CPU, without an operator."""
    own = all(type(t) in (Tensor, nn.Parameter) and t.device.type == "cpu" for t in tensors)
    if not own or torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return False
    return not torch._C._are_functorch_transforms_active()
