"""Verifying prepared data: any damage is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import numpy as np
import pytest

from lra.base.errors import UserError
from lra.data.arrays import MANIFEST, Prepared, manifest_text, read_manifest
from lra.data.verify import verify

from . import kit

Call = Callable[..., tuple[int, str, str]]


Fake = Callable[[str], Prepared]


def test_undamaged_data_verify(tiny: Prepared, fake: Fake) -> None:
    assert {line.status for line in verify(tiny.folder)} == {"ok"}  # committed statistics included
    for name in ("numbers", "pairs", "pictures"):
        assert kit.differences(fake(name).folder) == []


def test_any_changed_byte_of_an_array_is_found(tiny: Prepared) -> None:
    rng = np.random.default_rng(0)
    for name in tiny.facts["arrays"]:
        file = tiny.folder / f"{name}.npy"
        content = file.read_bytes()
        chosen = rng.choice(len(content), 25, replace=False)
        for at in {0, 7, 9, 60, len(content) - 1, *chosen.tolist()}:
            changed = bytearray(content)
            changed[at] ^= 1 << int(rng.integers(8))
            file.write_bytes(changed)
            (found,) = kit.differences(tiny.folder)
            assert str(file) in found
            assert f"{hashlib.sha256(content).hexdigest()} expected" in found
            assert f"{hashlib.sha256(changed).hexdigest()} found" in found
        with pytest.raises(UserError, match=rf"{name}\.npy has changed .* prepare it again"):
            tiny.check_hashes()  # with which a run begins
        file.write_bytes(content)
    assert kit.differences(tiny.folder) == []
    tiny.check_hashes()


def test_any_changed_byte_of_the_manifest_is_found(tiny: Prepared) -> None:
    file = tiny.folder / MANIFEST
    content = file.read_bytes()
    rng = np.random.default_rng(0)
    for at in sorted({*range(40), *rng.choice(len(content), 300, replace=False).tolist()}):
        changed = bytearray(content)
        changed[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(changed)
        with pytest.raises(UserError, match=r"manifest\.json is damaged"):
            read_manifest(tiny.folder)
    for changed in (b"", content[:-1], content + b"\n", content.replace(b"\n", b"\r\n"), b"[]"):
        file.write_bytes(changed)
        (found,) = kit.differences(tiny.folder)
        assert str(file) in found


def test_verify_recounts(tiny: Prepared) -> None:
    """Arrays and manifest that agree in their hashes, but not in what they say."""
    facts = json.loads(json.dumps(tiny.facts))
    facts["splits"]["val"]["labels"][3] += 1
    facts["splits"]["test"]["lengths"]["median"] += 1
    facts["duplicates"]["train/val"] = 1
    (tiny.folder / MANIFEST).write_text(
        manifest_text(facts, tiny.manifest["made"]), encoding="utf-8"
    )
    counted, *committed = kit.differences(tiny.folder)
    assert "splits val labels is [3, 3, 2, 5, 2" in counted
    assert "splits test lengths median is" in counted
    assert "duplicates train/val is 1, not 0" in counted
    assert all("statistics committed for listops from source=tiny" in text for text in committed)
    assert committed
