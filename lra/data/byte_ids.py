"""Text as bytes: id = byte + 1, so that 0 is left for padding. What google-research/
long-range-arena calls tokenizer=char."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from lra.base.config import UserError
from lra.data.task import Task

VERSION = "bytes-v1"
VOCAB = 257


def encode(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8) + np.uint16(1)


def encode_text(text: str) -> np.ndarray:
    """Encode it as Python reads a text from a file, bytes that are not UTF-8 included."""
    try:
        return encode(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise UserError(f"a text holds half of a character ({error}): it has no bytes") from error


def decode(ids: np.ndarray) -> str:
    """Show bytes that are not UTF-8, such as those of a character cut in two, as \\xff."""
    return (ids - 1).astype(np.uint8).tobytes().decode("utf-8", "backslashreplace")


class ByteTask(Task):
    """Reads texts byte by byte."""

    vocab = VOCAB
    encoding: ClassVar = {"tokenizer": VERSION}

    def decode(self, ids: np.ndarray) -> str:
        return decode(ids)

    def tokenize(self, text: str) -> np.ndarray:
        return encode_text(text)
