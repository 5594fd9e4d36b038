"""The one Transformer of the project: embedding, blocks around an attention slot, heads."""

from lra.model.network import Network

__all__ = ["Network"]
