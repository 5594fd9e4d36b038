"""Agent attention: m agents, which are means of queries, gather values and hand them out.

    a = means of m equal shares of each example's real queries, (m, d)
    gather      G = softmax(a k^T / sqrt(d))  (m, n)
    hand out    F = softmax(q a^T / sqrt(d))  (n, m)      out = F (G v)

The public code (LeapLabTHU/Agent-Attention) pools queries on a square grid and has learned biases
per agent and grid position, which are left out; its convolution is the slot's (`dwc=conv2d`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from luna.base import KEY_BIAS, Attention, Mask, Paper, Slot, at_least, register
from luna.blocks import masked_softmax, segment_means, valid_segments


@register("agent")
class Agent(Attention):
    title = "Agent attention"
    family = "low rank"
    marker = "P"
    paper = Paper(
        "Agent Attention: On the Integration of Softmax and Linear Attention",
        2024,
        "https://arxiv.org/abs/2312.08874",
    )
    complexity = "O(n m (d + e))"
    declared = Attention.declared.but(
        idle=KEY_BIAS,
        equivariant=False,  # agents are means of neighbours
    )

    def __init__(self, slot: Slot, *, agents: int = 49):
        super().__init__(slot)
        at_least("agent", 1, agents=agents)
        self.agents = agents

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        F, G = self.factors(q, k, mask)
        return F @ (G @ v)

    def factors(self, q: Tensor, k: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """F (B, H, n, m) and G (B, H, m, n). An example shorter than m has as many agents as
        tokens."""
        n = q.shape[2]
        positions, member = valid_segments(mask, n, min(self.agents, n), q.device)
        a = segment_means(q, positions, member) * self.head_dim**-0.5
        present = None if mask is None else member.any(-1)[:, None, None, :]
        real = None if mask is None else mask[:, None, None, :]
        return masked_softmax(q @ a.mT, present), masked_softmax(a @ k.mT, real)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        F, G = self.factors(q, k, mask)
        return torch.einsum("bhim,bhmj->bhij", F, G)
