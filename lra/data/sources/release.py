"""The official archive, lra_release.gz: a gzip-compressed tar in spite of its name, 8 GB.

    lra_release/lra_release/{listops-1000,tsv_data,pathfinder32,...}/...
    lra_release/{listops-1000,pathfinder128}/...            second copies; the inner ones are read

An archive is read once to list what it holds and once per task that is unpacked from it; both
results stay in <data_dir>/release. A folder is used as it is.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from lra.base.config import UserError
from lra.base.disk import disk_errors, require_space
from lra.data.parallel import track
from lra.data.sources import archives
from lra.data.sources.archives import Member
from lra.data.sources.fetch import fetch
from lra.data.store import lock, new_folder

URL = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
NAME = "lra_release.gz"
WHAT = f"the official archive {NAME} or its folder: `lra data download release` fetches it (8 GB)"
# Where the tasks lie below the user's folder; the copy that is read comes first.
PLACES = ("lra_release/lra_release", "lra_release", ".")
TASK = re.compile(r"listops-1000|tsv_data|pathfinder\d+")
INDEX = "index.json"

Index = dict[str, dict[str, int]]  # folder -> how many files, how many bytes


def root(path: Path, wanted: str, data_dir: Path) -> Path:
    """Give the folder below which the release lies unpacked, `wanted` at least (tsv_data, or a part
    such as pathfinder32/curv_baseline): `path` itself, or what is unpacked from that archive."""
    return _unpacked(path, wanted, data_dir) if path.is_file() else path


def folders(path: Path, wanted: str) -> list[Path]:
    """Find `wanted` below that root, the copy to be read first."""
    return [path / place / wanted for place in PLACES if (path / place / wanted).is_dir()]


def split_files(path: Path, folder: str, names: Mapping[str, str]) -> dict[str, Path]:
    """Find the file of each split in a folder of the release, or in `path` itself."""
    places = [path, *folders(path, folder)]
    place = next((p for p in places if (p / names["train"]).is_file()), None)
    if place is None:
        raise UserError(f"{path} holds no {names['train']}, nor does a folder {folder} in it")
    files = {split: place / name for split, name in names.items()}
    if missing := [str(file) for file in files.values() if not file.is_file()]:
        raise UserError(f"the data are not complete: {' and '.join(missing)} not found")
    return files


def download(folder: Path, url: str) -> Path:
    """Fetch the archive into a folder, going on where an earlier attempt broke off."""
    target = folder / NAME
    instead = "if you get the archive elsewhere, use it with source=release path=<the archive>"
    fetch(url, target, instead=instead)
    with target.open("rb") as file:
        if file.read(len(archives.GZIP)) != archives.GZIP:
            raise UserError(
                f"{target}, which {url} sent, is not a gzip archive: remove it; {instead}"
            )
    return target


# ---------------------------------------------------------------------- from an archive


def _unpacked(archive: Path, wanted: str, data_dir: Path) -> Path:
    stat = archive.stat()
    key = f"{archive.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    home = data_dir / "release" / f"{archive.stem}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
    with lock(home, f"another process is unpacking {archive}; waiting for it"):
        index = _index(archive, home / INDEX)
        copies: dict[str, Index] = {}
        for folder, facts in index.items():
            if (copy := _copy(folder, wanted)) is not None:
                copies.setdefault(copy, {})[folder] = facts
        if not copies:
            raise UserError(
                f"{archive} holds no {wanted}; it holds {', '.join(index) or 'no task'}"
            )
        inner = _report_copies(copies)[0]
        _unpack(archive, inner, home / inner, copies[inner])
    return home


def _index(archive: Path, file: Path) -> Index:
    """List what the archive holds, by folder; stored, because reading it all takes minutes."""
    try:
        index: Index = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        index = {}
        for member in track(archives.members(archive), f"looking through {archive.name}"):
            _refuse_outside(archive, member)
            if member.plain and (folder := _folder(member.name)):
                facts = index.setdefault(folder, {"files": 0, "bytes": 0})
                facts["files"] += 1
                facts["bytes"] += member.header.size
        with new_folder(file.parent) as partial:
            (partial / file.name).write_text(json.dumps(index, indent=1), encoding="utf-8")
    print(f"{archive} holds")
    for folder, facts in sorted(index.items()):
        print(f"  {folder:<60} {facts['files']:>9,} files {facts['bytes'] / 1e6:>9,.1f} MB")
    return index


def _unpack(archive: Path, name: str, target: Path, held: Index) -> None:
    if target.is_dir():
        return
    files, size = (sum(facts[key] for facts in held.values()) for key in ("files", "bytes"))
    target.parent.mkdir(parents=True, exist_ok=True)
    require_space(target.parent, size, "choose another --data-dir")
    below = (m for m in archives.members(archive) if m.plain and m.name.startswith(f"{name}/"))
    members = itertools.islice(below, files)  # the rest of the archive need not be read
    with new_folder(target) as partial:
        for member in track(members, f"unpacking {name}", files):
            _refuse_outside(archive, member)
            path = partial / PurePosixPath(member.name).relative_to(name)
            with disk_errors(target):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    file.writelines(member.chunks())


def _folder(name: str) -> str | None:
    """Name the folder that a file counts for: its task's, or one deeper if that has folders."""
    parts = name.split("/")
    for i, part in enumerate(parts[:-1]):
        if TASK.fullmatch(part):
            return "/".join(parts[: min(i + 2, len(parts) - 1)])
    return None


def _copy(folder: str, wanted: str) -> str | None:
    """Name the copy of `wanted` that holds this folder: the folder's name up to it."""
    match = re.match(rf"(?:.*/)?{re.escape(wanted)}(?=/|$)", folder)
    return match[0] if match else None


def _report_copies(copies: Iterable[str]) -> list[str]:
    """Sort them innermost first: that is the one public code reads."""
    ordered = sorted(copies, key=lambda name: (-name.count("/"), name))
    for other in ordered[1:]:
        print(f"{ordered[0]} is read, {other} is not: the release holds two copies")
    return ordered


def _refuse_outside(archive: Path, member: Member) -> None:
    """Refuse an archive that would write outside the folder it is unpacked to. Links within it are
    passed over: no file of the release is one."""
    header = member.header
    leads = [member.name]
    if header.issym():
        leads.append(posixpath.join(posixpath.dirname(member.name), header.linkname))
    elif header.islnk():
        leads.append(header.linkname)
    elif not (header.isreg() or header.isdir()):
        raise UserError(f"{archive} is refused: {member.name} is a device or a pipe, not a file")
    for path in map(posixpath.normpath, leads):
        if path.startswith("/") or path.split("/")[0] == "..":
            raise UserError(
                f"{archive} is refused: {member.name} leads to {path}, outside of the archive"
            )
