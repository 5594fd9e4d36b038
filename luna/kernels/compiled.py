"""How Triton compiles the kernels: what every launch says, and the tests that read machine code.

Fused, a product and the sum that it goes into are one instruction and are rounded once. Triton's
default for it is on up to 3.9 and off from 3.10, so it stands here for each kernel. All of them
want it: the projections of a feature map, exact products in single precision (`ieee`), are sums of
nothing else, and take twice the instructions without it. Nothing here relies on a product that is
rounded before it is added: parts of numbers are split by subtraction, and keys come of a division.
"""

from __future__ import annotations

FUSED = {"enable_fp_fusion": True}
# One stage: loads in flight ahead of their block would take registers that there are not.
PASSES = {**FUSED, "num_stages": 1}
STATES = {**FUSED, "num_warps": 1}  # a row of a state for each program
TABLES = FUSED
