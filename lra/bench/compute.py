"""`lra bench compute`: time and peak memory of a training step, compared with its counted FLOPs.

Compute is matched by FLOPs, but time depends on more than FLOPs. Every attention is measured with
the options of its file, on the same backbone and batch.
"""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace

import luna
from lra.bench.cases import StepCase
from lra.bench.rows import BenchResult, fastest
from lra.bench.sheet import Benchmark, SheetTable, cell
from lra.bench.worker import BenchRules
from lra.compute.budget import budget_of, cost_of, times
from lra.compute.count import count_run
from lra.report.notes import compute_class
from lra.settings.compose import compose

NOTES = (
    "batch {} of n = {:,}; the time of a round is the median of {} steps; the table shows the "
    "fastest round and, in brackets, the slowest divided by it",
    "memory: the allocator's peak, without parameters and state of the optimiser",
    "compute: parameters and FLOPs compared with the budget, by default LUNA's on the same "
    "backbone; `exempt`: no option of the method changes its cost",
)


def benchmark(options: Namespace) -> Benchmark:
    words = [*options.overrides, f"protocol.recipe.batch={options.batch}", "compute=report"]
    cases = [counted_step(name, words) for name in options.methods or luna.names()]
    task, n = cases[0].facts["task"], cases[0].lengths[0]
    return Benchmark(
        stem=f"bench-{task}",
        title=f"A training step, counted and measured: {task}",
        notes=[NOTES[0].format(options.batch, n, options.steps), *NOTES[1:]],
        cases=cases,
        rules=BenchRules.of(options, calls=options.steps, least=0.0, dear=math.inf,
                            summary=statistics.median),
    )  # fmt: skip


def counted_step(attention: str, words: Sequence[str]) -> StepCase:
    """The case of one attention, with the counted cost of a step."""
    words = [*words, f"attention={attention}"]
    run = compose(words)
    count, budget = count_run(run), budget_of(run)
    sizes = replace(cost_of(run, count), examples=None)  # a few steps are no training
    ratios, batch = budget.ratios(sizes), run.protocol.recipe.batch
    facts = {
        "attention": attention,
        "task": run.task.name,
        "batch": batch,
        "parameters": count.parameters,
        "step_flops": batch * count.total.training_flops,
        "flops_ratio": ratios.get("flops"),
        "flops_tolerance": run.compute.tolerance.flops,
        "verdict": budget.verdict(ratios),
        "exempt": run.compute.exempt,
    }
    return StepCase(group="step", name=attention, lengths=[run.protocol.data.pad_to], alone=True,
                    facts=facts, words=words)  # fmt: skip


def tables(result: BenchResult) -> Iterator[SheetTable]:
    head = ["attention", "compute", "step, GFLOPs", "× of the budget", "step, ms", "GFLOP/s",
            "peak, MiB"]  # fmt: skip
    memory = result.select("step", "peak_bytes")
    rows = {case: row for case, by_n in result.select("step", "seconds").items()
            for row in by_n.values()}  # fmt: skip
    lines = []
    for case in sorted(rows, key=lambda c: fastest(rows[c]) if rows[c].values else math.inf):
        row, facts = rows[case], result.cases["step", case]
        ratio, flops = facts["flops_ratio"], facts["step_flops"]
        line = [f"`{case}`", compute_class(facts), f"{flops / 1e9:,.2f}"]
        line.append(times(ratio) if ratio else "")
        if row.values:
            seconds = fastest(row)
            line.append(f"{seconds * 1e3:,.1f} ({times(max(row.values) / seconds)})")
            line += [f"{flops / seconds / 1e9:,.1f}", cell(memory[case].get(row.n))]
        else:
            line += [str(row.stopped), "", ""]
        lines.append(line)
    yield SheetTable("Time, memory and FLOPs", head, lines)
