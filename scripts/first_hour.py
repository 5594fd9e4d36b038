"""The first hour on a GPU: what is right, how fast it is, and the first full runs.

    python scripts/first_hour.py                     # or: make first-hour; again until it says done
    python scripts/first_hour.py --parts environment correctness    # those alone
    python scripts/first_hour.py --device cpu --quick               # a rehearsal, in two minutes

Every part is a process of its own and takes less than ten minutes. What it prints goes into
OUT/<part>.txt, how it ended into OUT/<part>.json; parts that ended well are not repeated. At the
end everything lies in OUT.tar.gz, the file to attach to an issue.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 600  # seconds for a part
LATE = 142  # how `lra train` ends at limit_minutes
# What the parts import, by module; a machine without network needs their wheels.
WHEELS = {"torch": "torch", "pytorch_lightning": "pytorch-lightning", "hydra": "hydra-core",
          "omegaconf": "omegaconf", "rich": "rich", "yaml": "pyyaml", "numpy": "numpy",
          "PIL": "pillow", "pytest": "pytest", "hypothesis": "hypothesis",
          "matplotlib": "matplotlib"}  # fmt: skip
TASKS = ("listops", "image", "text", "retrieval", "pathfinder")
RUNS = ("attention=luna", "attention=luna attention.preset=recommended compute=report",
        "attention=softmax", "attention=linear")  # fmt: skip
SLOW = 2  # seconds of a call: what takes more is left out of longer ones
SHAPES = ((2, 16, 64), (8, 2, 32))  # B, H, d
PRECISIONS = {"float32": 1e-3, "tf32": 3e-2, "bf16": 1e-1}  # and the error that is no surprise


def parts(device: str, quick: bool) -> Iterator[tuple[str, list[str]]]:
    """Names and words behind `python`, in order."""
    own = [__file__, "--device", device, *(["--quick"] if quick else []), "--run"]
    lra = ["-m", "lra"]
    small = ["--lengths", "64", "128", "--rounds", "1"] if quick else []
    yield "environment", [*own, "environment"]
    some = ["tests/luna/kernels/test_checked.py", "-k", "right"] if quick else ["-m", "gpu"]
    yield "tests", ["-m", "pytest", "-q", "-p", "no:cacheprovider", *some]
    yield "correctness", [*own, "correctness"]
    for i in range(len(SHAPES)):
        yield f"kernels-{i}", [*own, f"kernels-{i}"]
    where = ["--device", device, "--out", "bench"]
    yield "attention", [*lra, "bench", "attention", *where, *small,
                        *(["--methods", "luna", "linear"] if quick else [])]  # fmt: skip
    yield "causal", [*lra, "bench", "causal", *where, *small]
    trainer = "trainer=cpu" if device == "cpu" else "trainer=gpu"
    tiny = ["task.source=tiny", "budget=1e-6", "min_evaluations=1", "compute=off",
            "protocol.data.max_length=256", "protocol.data.pad_to=256"]  # fmt: skip
    tiny = tiny if quick else []
    for task in TASKS[: 1 if quick else None]:
        methods = "attention=luna" if quick else "attention=luna,softmax,linear"
        words = [f"task={task}", methods, trainer, "trainer.progress=off"]
        yield f"steps-{task}", [*lra, "plan", "-m", *words, *tiny]
    words = ["task=listops", "task.source=tiny", "attention=luna", trainer, *tiny]
    some = ["--rounds", "1", *(["--steps", "2"] if quick else [])]
    yield "train", [*lra, "bench", "train", *words, *some, "--out", "bench"]
    for task in TASKS[: 1 if quick else 3]:
        for i, run in enumerate(RUNS[: 1 if quick else None]):
            words = [f"task={task}", *run.split(), trainer, "limit_minutes=9", "runs_dir=runs"]
            yield f"run-{task}-{i}", [*lra, "train", *words, *tiny]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--quick", action="store_true", help="small sizes: a rehearsal")
    parser.add_argument("--out", type=Path, default=Path("first-hour"))
    parser.add_argument("--minutes", type=float, default=60, help="no part begins after these")
    parser.add_argument("--parts", nargs="+", help="beginnings of the names of those wanted")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        name, _, number = options.run.partition("-")
        OWN[name](options.device, options.quick, *([int(number)] if number else []))
        return 0
    missing = [wheel for module, wheel in WHEELS.items() if not importlib.util.find_spec(module)]
    if missing:
        print(f"missing: {' '.join(missing)}. With a network: pip install {' '.join(missing)}; "
              f"without: pip download -d wheels {' '.join(missing)} elsewhere, then "
              "pip install --no-index --find-links wheels ... here")  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    end, left = time.monotonic() + 60 * options.minutes, 0
    for name, words in parts(options.device, options.quick):
        if options.parts and not name.startswith(tuple(options.parts)):
            continue
        left += time.monotonic() > end or not _done(options.out, name, words)
    with tarfile.open(f"{options.out}.tar.gz", "w:gz") as archive:
        for path in (p for p in options.out.rglob("*") if p.is_file() and "runs" not in p.parts):
            archive.add(path)
    print(f"{f'{left} parts are left: repeat the command' if left else 'done'}; "
          f"the file to attach to a report is {options.out}.tar.gz")  # fmt: skip
    return min(left, 1)


def _done(out: Path, name: str, words: list[str]) -> bool:
    """Run a part unless it has ended well before."""
    note = out / f"{name}.json"
    if note.exists() and json.loads(note.read_text(encoding="utf-8"))["exit"] == 0:
        return True
    start = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with (out / f"{name}.txt").open("w", encoding="utf-8") as text:
        try:
            at = ROOT if name == "tests" else out
            command = [sys.executable, *words]
            code = subprocess.run(
                command, stdout=text, stderr=text, cwd=at, env=environment, timeout=LIMIT
            ).returncode
        except subprocess.TimeoutExpired:
            code = LATE
    facts = {"command": words, "exit": code, "seconds": round(time.monotonic() - start, 1)}
    note.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    how = "done" if code == 0 else "not finished yet" if code == LATE else f"FAILED, exit {code}"
    print(f"{name}: {how} in {facts['seconds']:g} s ({out / f'{name}.txt'})", flush=True)
    return code == 0


# ---------------------------------------------------------------------- parts of this file


def environment(device: str, quick: bool) -> None:
    import torch

    from lra.runs import environment

    facts = {"machine": environment.machine(torch.device(device)),
             "versions": environment.versions(), "switches": environment.switches(),
             "git": environment.git()}  # fmt: skip
    if device == "cuda":
        facts["properties"] = str(torch.cuda.get_device_properties(0))
        subprocess.run(["nvidia-smi"], check=False)
    print(json.dumps(facts, indent=1))


def correctness(device: str, quick: bool) -> None:
    """Outputs and gradients of every method on the device, against the CPU in float64."""
    import torch

    import luna

    wrong: list[str] = []
    for name in ("luna", "softmax", "nystrom") if quick else luna.names():
        state: dict[str, Any] = {}
        exact = _results(name, state, "cpu", torch.float64, "float64")
        for precision, allowed in PRECISIONS.items():
            found = _results(name, state, device, torch.float32, precision)
            pairs = zip(found, exact, strict=True)
            errors = [float((a - b).norm() / b.norm().clamp_min(1e-9)) for a, b in pairs]
            bad = not max(errors) <= allowed
            wrong += [f"{name} in {precision}"] * bad
            listed = " ".join(f"{e:.1e}" for e in errors)
            print(f"{name:16}{precision:9}{listed}{'  LARGE' if bad else ''}", flush=True)
    print("larger than rounding explains (methods with discrete choices may be so): "
          f"{', '.join(wrong) or 'none'}")  # fmt: skip


def _results(name: str, state: dict[str, Any], at: str, dtype: Any, precision: str) -> list[Any]:
    """Output and gradients of q, k, v, with the parameters of the first call."""
    import torch

    import luna

    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.manual_seed(0)
    n, H, d = 256, 2, 32
    method = luna.build(name, n_heads=H, head_dim=d, max_len=n).eval()
    values = [torch.randn(2, H, n, d, dtype=torch.float64) for _ in range(3)]
    x = torch.randn(2, n, H * d, dtype=torch.float64).to(at, dtype)
    state |= state or {k: v for k, v in method.state_dict().items() if torch.is_tensor(v)}
    method.load_state_dict(state, strict=False)
    method = method.to(at, dtype)
    leaves = [t.to(at, dtype).requires_grad_() for t in values]
    with torch.autocast(at, torch.bfloat16, enabled=precision == "bf16"):
        out = method(*leaves, x=x)
    found = torch.autograd.grad(out.sum(), leaves, allow_unused=True, materialize_grads=True)
    return [t.double().cpu() for t in (out.detach(), *found)]


def kernels(device: str, quick: bool, shape: int) -> None:
    """Forward and backward of LUNA's evaluations, linear and softmax, beside the time in which the
    memory could move q, k, v, o and their gradients."""
    import torch

    import luna
    from lra.bench.roofline import copy_rate
    from lra.bench.worker import BenchMeter, BenchRules
    from lra.figures.draw import save_figure

    meter = BenchMeter(BenchRules(rounds=1, threads=1, device=device))
    moved = copy_rate(meter, 2 ** (22 if quick else 30))
    (B, H, d), lengths = SHAPES[shape], [2**i for i in (range(6, 8) if quick else range(10, 17))]
    evaluations = ("fused", *(("triton",) if device == "cuda" else ()), "piecewise", "dense")
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        f"luna {way}": ("luna", {"evaluate": way}) for way in evaluations
    } | {"linear": ("linear", {}), "softmax": ("softmax", {})}
    rows: dict[str, dict[int, float]] = {name: {} for name in cases}
    for n in lengths:
        # q, k, v, o; then these and the gradient of o again, and the gradients of q, k, v.
        limit = 12 * B * H * n * d * 4 / moved
        print(f"n = {n}, memory's limit {1e3 * limit:.3f} ms ({moved / 1e9:.0f} GB/s)")
        rows.setdefault("limit of the memory", {})[n] = limit
        for name, (method, extra) in cases.items():
            if max(rows[name].values(), default=0) > SLOW:
                continue
            try:
                attention = luna.build(method, n_heads=H, head_dim=d, max_len=n, **extra).to(device)
                made = {"device": device, "requires_grad": True}
                q, k, v = (torch.randn(B, n, H, d, **made).transpose(1, 2) for _ in range(3))

                def call(attention=attention, q=q, k=k, v=v) -> None:
                    torch.autograd.grad(attention(q, k, v).sum(), (q, k, v))

                call()  # compiles
                rows[name][n] = seconds = meter.seconds({"s": call})["s"]
                print(f"  {name:16}{1e3 * seconds:10.3f} ms  {limit / seconds:5.0%} of the limit")
            except (luna.LunaError, RuntimeError) as error:
                print(f"  {name:16}{type(error).__name__}: {str(error).splitlines()[0]}")

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        for name, points in rows.items():
            axes.plot(*zip(*points.items(), strict=True) if points else ((), ()), label=name,
                      ls="--" if "limit" in name else "-", marker=".")  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="length n", ylabel="seconds",
                 title=f"Forward and backward, B {B}, H {H}, d {d}, float32")  # fmt: skip
        axes.legend()

    Path(f"kernels-{shape}.data.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    save_figure(Path(f"kernels-{shape}"), fill, size=(7, 5))


OWN: dict[str, Callable[..., None]] = {
    "environment": environment, "correctness": correctness, "kernels": kernels,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
