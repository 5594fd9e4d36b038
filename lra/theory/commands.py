"""The command line of `lra theory`, and its file of numbers."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lra.base.config import UserError, nearest
from lra.base.disk import disk_errors, read_json, write_atomically

CLAIMS = ("C1", "C2", "C3", "C4", "C5", "C6", "trained")
FILE = "theory.json"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "theory",
        help="measure and draw the claims of LUNA's theory",
        description="Measures each claim of LUNA's theory and draws it (docs/theory.md). The file "
        f"{FILE} in the target folder keeps the numbers of every claim, each with its settings.",
    )
    parser.add_argument("claims", nargs="*", metavar="claim", help=f"{', '.join(CLAIMS)}; default: "
                        "all, C6 if --bench and trained if --runs is given")  # fmt: skip
    parser.add_argument("--size", default="quick", help="quick (default), full: configs/theory/")
    parser.add_argument("--bench", type=Path, metavar="FILE", help="for C6: attention-*.json")
    parser.add_argument("--runs", type=Path, nargs="+", metavar="DIR",
                        help="for trained: folders of runs of luna and performer")  # fmt: skip
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="their prepared data")
    parser.add_argument("--draw", action="store_true", help="only draw the numbers again")
    parser.add_argument("--out", type=Path, default=Path("figures/theory"),
                        help="target folder (default: figures/theory)")  # fmt: skip
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lra.runs.folder import digest
    from lra.theory import draw

    file, needs = arguments.out / FILE, {"C6": "bench", "trained": "runs"}
    claims = (read_json(file) or {}).get("claims", {})
    can = list(claims) if arguments.draw else [c for c in CLAIMS if c not in needs
                                               or getattr(arguments, needs[c])]  # fmt: skip
    for claim in arguments.claims or can:
        if claim not in CLAIMS:
            raise UserError(f"unknown claim '{claim}'{nearest(claim, CLAIMS)}")
        if claim not in can:
            problem = "leave --draw out" if arguments.draw else f"name its --{needs[claim]}"
            raise UserError(f"{file} has no numbers of {claim}: {problem}")
        if not arguments.draw:
            claims[claim] = measured(claim, arguments)
            facts = {"claims": dict(sorted(claims.items()))}
            _write(file, facts | {"digest": digest(facts)})
        found, paths = claims[claim], draw.save(claim, claims[claim], arguments.out)
        print(f"{claim}  {'holds' if found['holds'] else 'DOES NOT HOLD'}: {found['verdict']}")
        print(f"    {', '.join(map(str, paths))}")
    print(file)


def measured(claim: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a claim's measurement gives, with everything that it came from."""
    from omegaconf import OmegaConf

    from lra.base import groups
    from lra.runs import environment
    from lra.theory import fits, runtime, sampling, spectra, trained

    sizes = groups.read("theory", arguments.size)
    size = sizes.get(claim, OmegaConf.create())
    measures: dict[str, Callable[..., dict[str, Any]]] = {
        "C1": spectra.measure, "C2": sampling.measure_bounded, "C3": sampling.measure_unbounded,
        "C4": fits.measure_width, "C5": fits.measure_rademacher,
    }  # fmt: skip
    start = time.perf_counter()
    if claim == "C6":
        found = runtime.measure(arguments.bench)
    elif claim == "trained":
        found = trained.measure(arguments.runs, arguments.data_dir, size.draws)
    else:
        found = measures[claim](size, sizes.seed, sizes.head_dim)
    settings: Any = OmegaConf.to_container(size)
    return _rounded(found) | {
        "size": arguments.size,
        "settings": settings | {key: sizes[key] for key in ("seed", "head_dim")},
        "seconds": round(time.perf_counter() - start, 1),
        "versions": environment.versions(),
        "git": environment.git(),
    }


def _write(file: Path, facts: dict[str, Any]) -> None:
    """JSON with every list of numbers on one line."""
    text = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
    one_line = re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), text)
    with disk_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, one_line.encode())


def _rounded(value: Any) -> Any:
    """Six digits: what differs between processors is left out."""
    if isinstance(value, dict):
        return {str(key): _rounded(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
