"""`python -m tests.fire`: the long form, resumable; `--quick`: a few seconds of each part."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from lra.compute import admit  # noqa: E402
from lra.fit import build  # noqa: E402

from . import crowd, faults, fuzz, kills, pages, pair, sweeps  # noqa: E402
from .forks import Fork, import_as_children_did  # noqa: E402
from .ledger import LEDGER, Ledger  # noqa: E402
from .readers import Readers  # noqa: E402
from .works import Works  # noqa: E402

PARTS = ("faults", "kills", "crowds", "fuzz")


def prepare_template(works: Works, names: list[str] | None) -> None:
    """One undisturbed pass through the works, after which this process knows what forks need."""
    wanted = works.wanted(names)
    works.provide({work.name for work in wanted})
    build(admit(works.run).run)
    for work in wanted:
        works.fresh(work)
        ending = Fork(lambda work=work: work.do(works.home), works.log).wait()
        if ending.code:
            raise SystemExit(f"{work.name} fails undisturbed:\n{ending.out}")
        works.keep(*work.makes)
        import_as_children_did(works.log)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fire", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", default=list(PARTS),
        help="faults kills crowds fuzz (these by default), pair (kills of two processes), sweeps",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", help="these works, readers or launchers alone")
    parser.add_argument("--every", type=int, default=1, help="try each n-th fault")
    parser.add_argument("--kills", type=int, default=240, help="of training, a quarter of others")
    parser.add_argument("--seconds", type=float, default=1800, help="of bad input, in all")
    parser.add_argument("--jobs", type=int, help="of each sweep (default: 50, 6 and 10)")
    parser.add_argument("--rounds", type=int, default=5, help="of 32 processes at once")
    parser.add_argument("--ledger", type=Path, default=LEDGER, help="file of the counts")
    a = parser.parse_args()
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    root = Path(tempfile.mkdtemp(prefix="fire-", dir=shared))
    ledger = Ledger(a.ledger)
    try:
        works = Works(root)
        if a.parts != ["sweeps"]:
            only = ["train"] if a.parts == ["pair"] else a.only
            prepare_template(works, None if "fuzz" in a.parts else only)
        if "faults" in a.parts:
            faults.burn(works, ledger, a.only, a.every)
        if "kills" in a.parts:
            kills.rain(works, ledger, a.kills, a.only)
        if "pair" in a.parts:
            pair.strike(works, ledger, a.kills // 4)
        if "crowds" in a.parts:
            crowd.gather(works, ledger, a.rounds, a.only)
        if "sweeps" in a.parts:
            sweeps.burn(ledger, a.only, a.jobs)
        if "fuzz" in a.parts:
            fuzz.feed(Readers(works), ledger, root / "fuzz", a.seconds, a.only)
    finally:
        ledger.facts["machine"] = f"{platform.system()}, Python {platform.python_version()}"
        ledger.save()
        if a.ledger == LEDGER:
            pages.write(ledger, LEDGER.with_suffix(".md"))
        shutil.rmtree(root, ignore_errors=True)
    for part in a.parts:
        print(part, dict(ledger.total("kills" if part == "pair" else part)))
    if ledger.problems:
        raise SystemExit(f"{len(ledger.problems)} trials lost something")


if __name__ == "__main__":
    main()
