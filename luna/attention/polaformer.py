"""PolaFormer: linear attention on the signed parts of q and k, raised to learned powers (eq. 4 to 9).

    u+ = relu(u / s)^p     u- = relu(-u / s)^p     p = 1 + alpha sigmoid(rho), s = softplus(tau)
    same signs      Q = [q+, q-]     opposite signs  Q = [q-, q+]     both against K = [k+, k-]

k carries a learned position embedding. The values' first half is read by the same-sign stream, the second half by
the opposite-sign one, each a normalised linear attention of width 2d. A depthwise convolution of the values is added
and a linear gate on the hidden states multiplies the sum (ZacharyMeng/PolaFormer, models/pola_pvt.py).

`strict`     denominators are max(c, eps); no local branch unless asked for (`attention.dwc` is the slot's, after
             the gate)
`published`  denominators are c + n eps, as in the public code; the local branch is on
"""

from __future__ import annotations
