"""The release: found in either layout, unpacked only as far as needed and never elsewhere; and
fetched from a server on this machine that breaks off, refuses, and changes its mind."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import lra.data
from lra.config import UserError
from lra.data import retrieval
from lra.data.prepare import prepare
from lra.data.sources import archives, fetch, release
from lra.data.verify import verify

from .. import kit

Call = Callable[..., tuple[int, str, str]]

ROW = b"1.0\ta\tb\tone\ttwo\n"
INNER, OUTER = "lra_release/lra_release", "lra_release"
PAIRS = [(f"tsv_data/{name}", ROW) for name in retrieval.FILES.values()]


def below(top: str, members: kit.Members) -> list[tuple[str, bytes]]:
    return [(f"{top}/{name}", content) for name, content in members]


def listops(mark: bytes) -> list[tuple[str, bytes]]:
    return [(f"listops-1000/basic_{s}.tsv", mark) for s in ("train", "val", "test")]


PICTURES = [(f"pathfinder32/{d}/imgs/0/sample_{i}.png", b"png")
            for d in ("curv_baseline", "curv_contour_length_14") for i in range(4)]  # fmt: skip
WHOLE = [
    *below(OUTER, listops(b"outer")),
    *below(INNER, listops(b"inner")),
    *below(INNER, PAIRS),
    *below(INNER, PICTURES),
    ("lra_release/README", b"read me"),
]


def files(folder: Path) -> list[str]:
    """Everything below a folder, but locks."""
    found = (p for p in folder.rglob("*") if not p.is_dir() and p.suffix != ".lock")
    return sorted(p.relative_to(folder).as_posix() for p in found)


# ---------------------------------------------------------------------- what is found


@pytest.mark.parametrize("packed", [True, False])
def test_an_archive_under_its_misleading_name(packed: bool, tmp_path: Path, lra_data: Call) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE, packed=packed)
    code, out, _ = lra_data("prepare", "retrieval", f"path={archive}")
    assert code == 0
    said = re.sub(" +", " ", out)
    assert f"{archive} holds\n lra_release/listops-1000 3 files 0.0 MB\n" in said
    assert "lra_release/lra_release/pathfinder32/curv_baseline 4 files" in said
    assert "lra_release/lra_release/tsv_data 3 files" in said
    # only what is needed
    (home,) = (tmp_path / "data" / "release").glob("[!.]*")
    expected = sorted(f"{INNER}/{name}" for name, _ in PAIRS)
    assert files(home) == ["index.json", *expected]


def test_damage_is_found_in_the_archive_and_in_what_was_unpacked(tmp_path: Path) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    options = lra.data.configure("retrieval", [f"path={archive}"])
    made = prepare(options, max_length=100, data_dir=tmp_path / "data")
    (home,) = (tmp_path / "data" / "release").glob("[!.]*")
    unpacked = home / INNER / PAIRS[1][0]
    for file in (archive, unpacked):
        content = file.read_bytes()
        file.write_bytes(content[:-1] + b"x")
        wrong = [line.text for line in verify(made.folder) if line.status == "differs"]
        assert [text for text in wrong if text.startswith(f"{file}: sha256 ")]
        file.write_bytes(content)


@pytest.mark.parametrize("archived", [True, False])
def test_the_inner_copy_is_read_and_named(
    archived: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lra_release.gz"
    kit.tar(path, WHOLE) if archived else kit.unpack(path, WHOLE)
    root = release.root(path, "listops-1000", tmp_path / "data")
    (first, *_) = release.folders(root, "listops-1000")
    assert (first / "basic_val.tsv").read_bytes() == b"inner"
    assert (
        f"{INNER}/listops-1000 is read, lra_release/listops-1000 is not: the release holds two"
    ) in capsys.readouterr().out
    assert (root == path) == (not archived)
    if archived:
        assert not (root / OUTER / "listops-1000").exists()


def test_a_part_of_a_task(tmp_path: Path) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    wanted = "pathfinder32/curv_contour_length_14"
    root = release.root(archive, wanted, tmp_path / "data")
    assert files(root) == [
        "index.json",
        *(f"{INNER}/{wanted}/imgs/0/sample_{i}.png" for i in range(4)),
    ]
    release.root(archive, "pathfinder32", tmp_path / "data")
    assert len(files(root / INNER)) == 8
    release.root(archive, "tsv_data", tmp_path / "data")
    assert len(files(root / INNER)) == 11


@pytest.mark.parametrize("top", [".", OUTER, INNER])
def test_archives_of_any_layout(top: str, tmp_path: Path) -> None:
    archive = kit.tar(tmp_path / "mine.tar.gz", below(top, PAIRS))
    root = release.root(archive, "tsv_data", tmp_path / "data")
    assert (retrieval.find(root)["train"]).read_bytes() == ROW


def test_what_is_not_there(tmp_path: Path, lra_data: Call) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", below(INNER, listops(b"x")))
    code, _, err = lra_data("prepare", "retrieval", f"path={archive}")
    assert code == 2
    assert f"{archive} holds no tsv_data; it holds lra_release/lra_release/listops-1000" in err
    empty = kit.tar(tmp_path / "empty.tar", [("README", b"")], packed=False)
    code, _, err = lra_data("prepare", "retrieval", f"path={empty}")
    assert code == 2
    assert f"{empty} holds no tsv_data; it holds no task" in err


# ---------------------------------------------------------------------- kept, and made anew


def test_an_archive_is_looked_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    root = release.root(archive, "tsv_data", tmp_path / "data")
    reads = []
    real = archives.members
    monkeypatch.setattr(archives, "members", lambda path: reads.append(path) or real(path))
    assert release.root(archive, "tsv_data", tmp_path / "data") == root
    assert reads == []
    release.root(archive, "listops-1000", tmp_path / "data")
    assert reads == [archive]  # to unpack; what it holds is known
    (root / INNER / PAIRS[0][0]).unlink()
    release.root(archive, "tsv_data", tmp_path / "data")
    assert len(reads) == 2
    assert (root / INNER / PAIRS[0][0]).read_bytes() == ROW
    (root / "index.json").write_text("{", encoding="utf-8")
    release.root(archive, "tsv_data", tmp_path / "data")
    assert len(reads) == 4


def test_another_archive_of_the_same_name(tmp_path: Path) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    first = release.root(archive, "tsv_data", tmp_path / "data")
    kit.tar(archive, below(INNER, [(name, ROW * 2) for name, _ in PAIRS]))
    second = release.root(archive, "tsv_data", tmp_path / "data")
    assert first != second
    assert retrieval.find(second)["test"].read_bytes() == ROW * 2


def test_a_failure_half_way_leaves_nothing_to_be_mistaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    release.root(archive, "listops-1000", tmp_path / "data")
    (home,) = (tmp_path / "data" / "release").glob("[!.]*")
    before = files(home)
    monkeypatch.setattr(archives.Member, "chunks", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        release.root(archive, "tsv_data", tmp_path / "data")
    assert files(home) == before


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="no space left on the disk of"):
        release.root(archive, "tsv_data", tmp_path / "data")


# ---------------------------------------------------------------------- archives that mean harm


def header(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


TSV = f"{INNER}/tsv_data"
HARM = {
    "up": header(f"{TSV}/../../../../outside"),
    "up from the top": header("../outside"),
    "absolute": header("/tmp/outside"),
    "twice absolute": header("//tmp/outside"),
    "a link up": header(f"{TSV}/x", tarfile.SYMTYPE, "../../../../outside"),
    "a link to the root": header(f"{TSV}/x", tarfile.SYMTYPE, "/etc"),
    "a hard link up": header(f"{TSV}/x", tarfile.LNKTYPE, "../outside"),
    "a hard link to the root": header(f"{TSV}/x", tarfile.LNKTYPE, "/etc/passwd"),
    "a device": header(f"{TSV}/x", tarfile.CHRTYPE),
    "a disk": header(f"{TSV}/x", tarfile.BLKTYPE),
    "a pipe": header(f"{TSV}/x", tarfile.FIFOTYPE),
    "up in another task": header("lra_release/pathfinder32/../../../outside"),
}


@pytest.mark.parametrize("kind", HARM)
def test_an_archive_that_leads_outside_is_refused_whole(kind: str, tmp_path: Path) -> None:
    """Even when the harm comes last: nothing is unpacked before everything has been looked at."""
    archive = kit.tar_of(
        tmp_path / "in" / "lra_release.gz", [*kit.headers(below(INNER, PAIRS)), (HARM[kind], b"")]
    )
    before = files(tmp_path)
    with pytest.raises(
        UserError, match=r"outside of the archive|is a device or a pipe, not a file"
    ):
        release.root(archive, "tsv_data", tmp_path / "data")
    assert files(tmp_path) == before


def test_links_within_the_archive_are_passed_over(tmp_path: Path) -> None:
    """A link to a folder within, and a file through it, would lead anywhere in two steps."""
    headers = [
        (header(f"{TSV}/a", tarfile.SYMTYPE, "."), b""),
        (header(f"{TSV}/b", tarfile.LNKTYPE, f"{TSV}/{retrieval.FILES['train']}"), b""),
        (header(f"{TSV}/folder", tarfile.DIRTYPE), b""),
        *kit.headers(below(INNER, PAIRS)),
    ]
    archive = kit.tar_of(tmp_path / "lra_release.gz", headers)
    root = release.root(archive, "tsv_data", tmp_path / "data")
    assert sorted(os.listdir(root / TSV)) == sorted(retrieval.FILES.values())  # noqa: PTH208


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda c: c[: len(c) // 2], "is not complete, it ends too early: download it again"),
        (lambda c: b"<html>403</html>" * 100, "is not a tar archive, or a damaged one"),
        (lambda c: b"", "is not a tar archive, or a damaged one"),
    ],
    ids=["half", "a page", "empty"],
)
def test_files_that_are_not_archives(
    damage: Callable[[bytes], bytes], complaint: str, tmp_path: Path, lra_data: Call
) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    archive.write_bytes(damage(archive.read_bytes()))
    code, _, err = lra_data("prepare", "retrieval", f"path={archive}")
    assert code == 2
    assert err.startswith(f"error: {archive} {complaint}")
    assert files(tmp_path / "data") == []


@pytest.mark.parametrize("packed", [True, False])
def test_every_cut_of_an_archive_is_noticed(packed: bool, tmp_path: Path) -> None:
    """tarfile takes a cut between two files, or a damaged header, for the end."""
    archive = kit.tar(tmp_path / "x.tar", WHOLE, packed=packed)
    content = archive.read_bytes()
    needed = len(content) if packed else len(content.rstrip(b"\0")) + 1024
    for cut in [*range(0, needed, 512 if not packed else 37), needed - 1]:
        archive.write_bytes(content[:cut])
        with pytest.raises(UserError, match=r"is not complete|is not a tar archive"):
            list(archives.members(archive))
    if not packed:
        for at in range(0, len(content.rstrip(b"\0")), 1024):  # headers: contents are shorter
            changed = bytearray(content)
            changed[at] ^= 1
            archive.write_bytes(changed)
            with pytest.raises(UserError, match="is not a tar archive, or a damaged one"):
                list(archives.members(archive))


# ---------------------------------------------------------------------- fetched


class Server(ThreadingHTTPServer):
    """A file, and how it is to be served."""

    content = archives.GZIP + os.urandom(3_000_000)
    version = '"one"'
    breaks: tuple[int, ...] = ()  # bytes after which each answer breaks off, in turn
    refuses: int | None = None
    ranges = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is nothing to print about."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/long-range-arena/lra_release.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        if server.refuses:
            self.send_error(server.refuses)
            return
        start = 0
        same = self.headers.get("If-Range") in (None, server.version)
        if wanted and server.ranges and same:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(server.content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(server.content)}")
                self.end_headers()
                return
            self.send_response(206)
        else:
            self.send_response(200)
        body = server.content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", server.version)
        self.end_headers()
        if server.breaks:
            cut, *rest = server.breaks
            server.breaks = tuple(rest)
            body = body[:cut]
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(fetch, "PAUSE", 0.01)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def test_the_archive_is_fetched(server: Server, tmp_path: Path, lra_data: Call) -> None:
    code, out, _ = lra_data("download", "release", "--url", server.url)
    target = tmp_path / "data" / "lra_release.gz"
    assert code == 0
    assert out == (
        f"downloading 3 MB to {tmp_path / 'data'}\n"
        f"{target}: use it with source=release path={target}\n"
    )
    assert target.read_bytes() == server.content
    assert files(tmp_path / "data") == ["lra_release.gz"]
    assert lra_data("download", "release", "--url", server.url)[0] == 0
    assert server.asked == [None]  # it is there


def test_a_broken_download_is_taken_up_again(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.breaks = (2_000_000, 500_000)
    target = release.download(tmp_path, server.url)
    assert target.read_bytes() == server.content
    assert server.asked == [None, "bytes=2000000-", "bytes=2500000-"]
    said = capsys.readouterr().out
    assert "127.0.0.1 closed the connection, 2 MiB are here; taking it up again" in said
    assert f"downloading 3 MB to {tmp_path}, 2 MB of them are there" in said
    assert files(tmp_path) == ["lra_release.gz"]


def test_a_killed_download_is_taken_up_by_the_next_command(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.breaks = (1_500_000,)
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        release.download(tmp_path, server.url)
    assert (tmp_path / ".lra_release.gz.partial").stat().st_size == 1_500_000
    assert not (tmp_path / "lra_release.gz").exists()
    assert release.download(tmp_path, server.url).read_bytes() == server.content
    assert server.asked == [None, "bytes=1500000-"]


def test_a_file_that_changed_meanwhile_is_fetched_from_the_start(
    server: Server, tmp_path: Path
) -> None:
    partial = tmp_path / ".lra_release.gz.partial"
    partial.write_bytes(b"of another file" * 1000)
    (tmp_path / ".lra_release.gz.version").write_text('"zero"', encoding="utf-8")
    assert release.download(tmp_path, server.url).read_bytes() == server.content
    # and where it is not known what the bytes belong to
    (tmp_path / "lra_release.gz").unlink()
    partial.write_bytes(b"of another file" * 1000)
    assert release.download(tmp_path, server.url).read_bytes() == server.content
    assert server.asked == ["bytes=15000-", None]


def test_a_server_that_cannot_resume(server: Server, tmp_path: Path) -> None:
    server.ranges, server.breaks = False, (2_000_000,)
    assert release.download(tmp_path, server.url).read_bytes() == server.content


def test_a_download_that_was_complete_but_not_yet_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".lra_release.gz.partial").write_bytes(server.content)
    (tmp_path / ".lra_release.gz.version").write_text(server.version, encoding="utf-8")
    assert release.download(tmp_path, server.url).read_bytes() == server.content
    assert server.asked == ["bytes=3000002-"]


def test_a_server_that_goes_away_for_good(server: Server, tmp_path: Path) -> None:
    server.breaks = (1_100_000, 0, 0, 0, 0, 0)
    with pytest.raises(UserError) as error:
        release.download(tmp_path, server.url)
    assert len(server.asked) == 1 + fetch.TRIES
    assert str(error.value).startswith(
        "127.0.0.1 closed the connection (1 MiB are here, the same command goes on from there); "
    )


@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (404, "Not Found")])
def test_a_server_that_refuses(
    code: int, reason: str, server: Server, tmp_path: Path, lra_data: Call
) -> None:
    server.refuses = code
    status, _, err = lra_data("download", "release", "--url", server.url)
    assert status == 2
    assert err == (
        f"error: 127.0.0.1 refuses {server.url}: HTTP {code} {reason}; if you get the archive "
        "elsewhere, use it with source=release path=<the archive>\n"
    )
    assert files(tmp_path) == []


@pytest.mark.parametrize("begun", [True, False])
def test_no_server_is_reported_at_once(begun: bool, tmp_path: Path) -> None:
    """Also where a part is there already."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/x.gz"
    if begun:
        (tmp_path / ".lra_release.gz.partial").write_bytes(b"x" * 5000)
    start = time.monotonic()
    with pytest.raises(UserError) as error:
        release.download(tmp_path, url)
    assert time.monotonic() - start < 5
    assert re.match(r"127\.0\.0\.1 cannot be reached \(.*refused\)", str(error.value))
    assert ("the same command goes on" in str(error.value)) == begun


def test_a_silent_server_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "ANSWER", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.monotonic()
        with pytest.raises(UserError, match=r"cannot be reached \(timed out\)"):
            release.download(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}/x.gz")
    assert time.monotonic() - start < 5


def test_without_a_network_the_real_address_is_reported_at_once(
    lra_data: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: urllib.request.Request, timeout: float) -> None:
        assert request.full_url == release.URL
        assert timeout + fetch.RESOLVE < 15
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    code, _, err = lra_data("download", "release")
    assert code == 2
    assert err.startswith("error: storage.googleapis.com cannot be reached (Name or service not")


def test_no_room_for_it(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError) as error:
        release.download(tmp_path, server.url)
    assert str(error.value) == (
        f"no space left on the disk of {tmp_path}: 3 MB are needed, 2 MB are free; free some, or "
        "choose another folder"
    )
    assert not (tmp_path / ".lra_release.gz.partial").exists()


def test_a_page_in_place_of_the_archive(server: Server, tmp_path: Path) -> None:
    server.content = b"<html>please log in</html>"
    with pytest.raises(UserError, match="is not a gzip archive: remove it"):
        release.download(tmp_path, server.url)


def test_what_is_fetched_is_held_to_its_size_and_hash(server: Server, tmp_path: Path) -> None:
    for expected, complaint in (
        ({"size": 7}, "7 bytes expected, 3,000,002 found"),
        ({"digest": "0" * 64}, f"sha256 {'0' * 64} expected, "),
    ):
        with pytest.raises(UserError) as error:
            fetch.fetch(server.url, tmp_path / "x", instead="", **expected)
        assert f"what the server sent as x is not the file: {complaint}" in str(error.value)
        assert not (tmp_path / "x").exists()
        assert not (tmp_path / ".x.partial").exists()
