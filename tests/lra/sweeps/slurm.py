"""A SLURM of three small programs: it starts every job of an array at once, and loses one."""

from __future__ import annotations

from pathlib import Path

LOST = 1  # the job whose machine dies before it begins
PROGRAMS = {
    # The script is read before this program ends, because submitit moves it then.
    "sbatch": r"""
script=$(cat "$1")
last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\).*/\1/p' "$1")
for job in $(seq 0 "$last"); do
    export SLURM_JOB_ID=$((8 + job)) SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$job
    setsid bash -c "$script" > /dev/null 2>&1 < /dev/null &
done
echo Submitted batch job 7
""",
    "srun": rf"""
[ "$SLURM_ARRAY_TASK_ID" = {LOST} ] && exit 1
place() {{
    name=${{1//%A/7}} name=${{name//%a/$SLURM_ARRAY_TASK_ID}} name=${{name//%t/0}}
    mkdir -p "$(dirname "$name")"
}}
while [[ $1 == --* ]]; do
    case $1 in
        --output) place "$2"; exec > "$name"; shift ;;
        --error) place "$2"; exec 2> "$name"; shift ;;
    esac
    shift
done
exec "$@"
""",
    "sacct": f"""
echo 'JobID|State|NodeList'
echo '7_{1 - LOST}|RUNNING|here'
echo '7_{LOST}|NODE_FAIL|here'
""",
}


def install(folder: Path) -> None:
    folder.mkdir()
    for name, text in PROGRAMS.items():
        program = folder / name
        program.write_text(f"#!/bin/bash{text}", encoding="utf-8")
        program.chmod(0o755)
