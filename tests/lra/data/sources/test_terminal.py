"""Text in a source that somebody else made does not steer the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lra.data import image
from lra.data.arrays import SPLITS

from .. import kit

ESCAPE = "\x1b[2J\u202e"
METADATA = "pathfinder32/curv_contour_length_14/metadata/0.npy"


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["listops"], {f"basic_{s}.tsv": f"Source\tTarget\n[{ESCAPE} 1 ]\t1\n" for s in SPLITS}),
        (["listops"], {f"basic_{s}.tsv": f"Source\tTarget\n1\t{ESCAPE}\n" for s in SPLITS}),
        (["pathfinder"], {METADATA: f"imgs/{ESCAPE} sample_0.png 0 1\n" * 10}),
        (["pathfinder"], {METADATA: f"../{ESCAPE} sample_0.png 0 1\n"}),
        (["retrieval"], {"x.tar": f"tsv_data/{ESCAPE}"}),
        (["image", "checksum=any"], {"x.tar": f"{image.FOLDER}/{image.NOTE}\0{ESCAPE}"}),
        (["text", "checksum=any"], {"x.tar": f"aclImdb/train/neg/{ESCAPE}.txt"}),
    ],
)
def test_text_in_a_source_does_not_steer_the_terminal(
    words: list[str], files: dict[str, str], tmp_path: Path, lra_data: Callable[..., tuple]
) -> None:
    task, *rest = words
    path = tmp_path / "source"
    for name, content in files.items():
        if name == "x.tar":
            member, _, text = content.partition("\0")
            path = kit.tar(path / name, [(member, text.encode())])
        else:
            kit.unpack(path, [(name, content.encode())])
    source = "files" if rest else "release"
    code, out, err = lra_data("prepare", task, f"source={source}", f"path={path}", *rest)
    assert code == 2
    assert err.startswith("error: ")
    assert not {"\x1b", "\u202e"} & {*out, *err}
