"""The official archive, lra_release.gz: a gzip-compressed tar in spite of its name, 8 GB.

    lra_release/lra_release/{listops-1000,tsv_data,pathfinder32,...}/...
    lra_release/{listops-1000,pathfinder128}/...            second copies; the inner ones are read

An archive is read once for each task that is unpacked from it into <data_dir>/release. A folder is
used as it is.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any, ClassVar

from lra.base.disk import disk_errors
from lra.base.errors import UserError
from lra.data.parallel import track
from lra.data.store import lock, new_folder
from lra.data.task import BUNDLED, Job, Source, Task

URL = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
WHAT = f"the official archive lra_release.gz (8 GB, {URL}) or its folder"
# Where the tasks lie below the user's folder; the copy that is read comes first.
PLACES = ("lra_release/lra_release", "lra_release", ".")
TASK = re.compile(r"listops-1000|tsv_data|pathfinder\d+")


def root(path: Path, wanted: str, data_dir: Path) -> Path:
    """Give the folder below which the release lies unpacked, `wanted` at least (tsv_data, or a part
    such as pathfinder32/curv_baseline): `path` itself, or what is unpacked from that archive."""
    if not path.is_file():
        return path
    stat = path.stat()
    key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    home = data_dir / "release" / f"{path.stem}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
    target = home / wanted
    with lock(target, f"another process is unpacking {path}; waiting for it"):
        if not target.is_dir():
            with new_folder(target) as partial:
                _unpack(path, wanted, partial)
    return target


def folders(path: Path, wanted: str) -> list[Path]:
    """Find `wanted` below that root, the copy to be read first."""
    return [path / place / wanted for place in PLACES if (path / place / wanted).is_dir()]


class ReleasedTask(Task):
    """Reads one file per split, in a folder of the release or in `path` itself."""

    sources: ClassVar = {
        "release": Source("the official files, or files in their format"),
        "tiny": BUNDLED,
    }
    folder: ClassVar[str]
    files: ClassVar[dict[str, str]]

    def find_files(self, options: Any, job: Job) -> dict[str, Path]:
        path = self.place(options, WHAT)
        files = self._files(root(path, self.folder, job.data_dir))
        if path.is_file():
            job.inputs += files.values()
        return files

    def inputs(self, options: Any) -> list[Path]:
        path = self.place(options, WHAT)
        return [path] if path.is_file() else list(self._files(path).values())

    def _files(self, path: Path) -> dict[str, Path]:
        first = self.files["train"]
        places = [path, *folders(path, self.folder)]
        place = next((p for p in places if (p / first).is_file()), None)
        if place is None:
            raise UserError(f"{path} holds no {first}, nor does a folder {self.folder} in it")
        files = {split: place / name for split, name in self.files.items()}
        if missing := [str(file) for file in files.values() if not file.is_file()]:
            raise UserError(f"the data are not complete: {' and '.join(missing)} not found")
        return files


def _unpack(archive: Path, wanted: str, target: Path) -> None:
    """Write the files below `wanted`, and nothing else of the archive: a link or a device is passed
    over, so no name leads out of the target."""
    from lra.data.sources import archives

    places = tuple(posixpath.normpath(f"{place}/{wanted}") + "/" for place in PLACES)
    tasks = set()
    with archives.opened(archive) as files:
        for name, content in track(files, f"unpacking {wanted} of {archive.name}"):
            tasks.update(TASK.findall(name))
            if name.startswith(places):
                if (target / name).exists():
                    raise UserError(f"{archive} is damaged: {name} comes twice")
                with disk_errors(target):
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    with (target / name).open("wb") as file:
                        shutil.copyfileobj(content, file, archives.CHUNK)
    copies = folders(target, wanted)
    if not copies:
        raise UserError(
            f"{archive} holds no {wanted}; it holds {', '.join(sorted(tasks)) or 'no task'}"
        )
    for other in copies[1:]:  # public code reads the inner one
        first, second = (copy.relative_to(target) for copy in (copies[0], other))
        print(f"{first} is read, {second} is not: the release holds two copies")
        shutil.rmtree(other)
