"""What every benchmark writes beside its numbers: how, where and when, under which name."""

from __future__ import annotations

import importlib
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lra import environment


def facts(benchmark: str, settings: Any, *, device: str) -> dict[str, Any]:
    """`settings` is a dataclass that has `threads`."""
    machine = environment.machine(torch.device(device))
    if device == "cpu":
        machine["threads"] = settings.threads
    return {
        "benchmark": benchmark,
        "settings": asdict(settings),
        "machine": machine,
        "versions": environment.versions(),
        "git": environment.git(),
        "date": time.strftime("%Y-%m-%d"),
    }


def stem(out: Path, name: str, facts: dict[str, Any], *, threads: bool = True) -> Path:
    """Of the files' names: name, device, threads of a CPU, torch. The folder is made."""
    machine = facts["machine"]
    device = re.sub(r"[^a-z0-9]+", "-", machine["device"].lower()).strip("-")
    many = f"-{machine['threads']}thread" if threads and machine["kind"] == "cpu" else ""
    out.mkdir(parents=True, exist_ok=True)
    return out / f"{name}-{device}{many}-torch{facts['versions']['torch'].partition('+')[0]}"


def picture(module: str, *arguments: Any) -> list[Path]:
    """What `draw` of that module of lra.bench writes, where matplotlib is installed."""
    try:
        drawing = importlib.import_module(f"lra.bench.{module}")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print("no picture: matplotlib is not installed (pip install 'luna-lra[plots]')")
        return []
    return drawing.draw(*arguments)


def provenance(facts: dict[str, Any]) -> list[str]:
    """Machine and versions, as lines of a list."""
    machine, versions, git = (facts[key] for key in ("machine", "versions", "git"))
    threads = f", {machine['threads']} torch thread(s)" if machine["kind"] == "cpu" else ""
    revision = (git["revision"] or "no checkout")[:10] + (" + changes" if git["dirty"] else "")
    return [
        f"- machine: {machine['device']}{threads}, {machine['system']}",
        f"- versions: torch {versions['torch']}, python {versions['python']}, "
        f"luna-lra {versions['luna-lra']} ({revision}), {facts['date']}",
    ]
