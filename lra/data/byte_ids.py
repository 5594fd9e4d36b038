"""Text as bytes: id = byte + 1, so that 0 is left for padding. What google-research/
long-range-arena calls tokenizer=char."""

from __future__ import annotations

import numpy as np

VERSION = "bytes-v1"
VOCAB = 257


def encode(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8) + np.uint16(1)


def encode_text(text: str) -> np.ndarray:
    """Encode a text as Python reads it from a file, bytes that are not UTF-8 included."""
    return encode(text.encode("utf-8", "surrogateescape"))


def decode(ids: np.ndarray) -> str:
    """Show bytes that are not UTF-8, such as those of a character cut in two, as \\xff."""
    return (ids - 1).astype(np.uint8).tobytes().decode("utf-8", "backslashreplace")
