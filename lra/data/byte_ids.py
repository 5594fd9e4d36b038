"""Text as bytes: id = byte + 1, so that 0 is left for padding. What google-research/
long-range-arena calls tokenizer=char."""

from __future__ import annotations

import numpy as np

VERSION = "bytes-v1"
VOCAB = 257


def encode(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8) + np.uint16(1)


def encode_text(text: str) -> np.ndarray:
    """A text as Python reads it from a file or a terminal, bytes that are not UTF-8 included."""
    return encode(text.encode("utf-8", "surrogateescape"))


def decode(ids: np.ndarray) -> str:
    """For the eye: what is not UTF-8, a character cut in two for example, is shown as \\xff."""
    return (ids - 1).astype(np.uint8).tobytes().decode("utf-8", "backslashreplace")
