"""Bad input: contents and JSON values that differ from good ones in a few hostile places."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
TOKENS: tuple[bytes, ...] = (
    b"\0", b"\xff\xfe", b"\r\n", b"\t", b'"', b"../../outside", b"/etc/passwd", b"NaN", b"-1",
    b"1e999", b"9" * 40, b"[" * 3000, b"{", b"null", SCRIPT.encode(), b"${oc.env:HOME}",
    b"!!python/object/apply:os.mkdir [outside]", b"*a", b"&a [*a, *a]", "\u2028".encode(),
    b"cos\nmkdir\n(S'outside'\ntR.", b"\xed\xa0\x80", b"%s%n", b"\x80\x04.", b"",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**400, float("nan"), float("inf"), "", SCRIPT, "../../outside",
    "a\nb", "\u2028", "\x1b[2J", "NaN", [], {}, [[]], {"name": None}, [1, None, "x"], "x" * 5000,
    "${oc.env:HOME}", 2**63, "\ud800",
)  # fmt: skip


def content(draw: Random, good: bytes) -> bytes:
    """Good bytes with one to four hostile changes."""
    found = bytearray(good)
    for _ in range(draw.randint(1, 4)):
        at = draw.randint(0, len(found))
        end = min(len(found), at + draw.choice((1, 1, 4, 16, 300)))
        match draw.randint(0, 5):
            case 0:
                found[at:end] = draw.randbytes(end - at)
            case 1:
                del found[at:end]
            case 2:
                found[at:at] = found[at:end]
            case 3:
                found[at:at] = draw.choice(TOKENS)
            case 4:
                del found[at:]
            case 5 if at < len(found):
                found[at] ^= 1 << draw.randint(0, 7)
    return bytes(found)


def value(draw: Random, good: Any) -> Any:
    """A JSON value with one to three facts replaced, removed, added or swapped."""
    found = json.loads(json.dumps(good))
    for _ in range(draw.randint(1, 3)):
        inner = _inner(draw, found)
        if isinstance(inner, dict) and inner:
            key = draw.choice(list(inner))
            match draw.randint(0, 5):
                case 0:
                    del inner[key]
                case 1:
                    inner[draw.choice(("name", SCRIPT, "", "0", "__class__"))] = inner[key]
                case _:
                    inner[key] = copy.deepcopy(draw.choice(VALUES))
        elif isinstance(inner, list) and inner:
            inner[draw.randrange(len(inner))] = copy.deepcopy(draw.choice(VALUES))
    return found


def _inner(draw: Random, found: Any) -> Any:
    """A group or list somewhere in a value."""
    while True:
        parts = list(found.values()) if isinstance(found, dict) else found
        groups = [p for p in parts if isinstance(p, dict | list) and p]
        if not groups or draw.random() < 0.3:
            return found
        found = draw.choice(groups)
