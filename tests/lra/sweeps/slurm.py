"""A SLURM of three small programs: it starts every job of an array at once, each with its tasks on
this machine, and loses one."""

from __future__ import annotations

from pathlib import Path

LOST = 1  # the job whose machine dies before it begins
PROGRAMS = {
    # The script is read before this program ends, because submitit moves it then.
    "sbatch": r"""
script=$(cat "$1")
last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\).*/\1/p' "$1")
tasks=$(sed -n 's/^#SBATCH --ntasks-per-node=//p' "$1")
rm -f "${0%/*}/failed"
for job in $(seq 0 "${last:-0}"); do
    export SLURM_JOB_ID=7
    [ -n "$last" ] && export SLURM_JOB_ID=$((8 + job)) SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$job
    export SLURM_NTASKS=$tasks SLURM_NTASKS_PER_NODE=$tasks SLURM_NNODES=1 SLURM_JOB_NUM_NODES=1
    export SLURM_NODEID=0 SLURM_NODELIST=127.0.0.1 SLURM_JOB_NODELIST=127.0.0.1
    setsid bash -c "$script" > /dev/null 2>&1 < /dev/null &
done
echo Submitted batch job 7
""",
    # As with --kill-on-bad-exit: where a task fails, the others are stopped.
    "srun": rf"""
[ "$SLURM_ARRAY_TASK_ID" = {LOST} ] && exit 1
place() {{
    name=${{1//%A/7}} name=${{name//%a/$SLURM_ARRAY_TASK_ID}} name=${{name//%t/$rank}}
    name=${{name//%j/7}}
    mkdir -p "$(dirname "$name")"
}}
while [[ $1 == --* ]]; do
    case $1 in
        --output) output=$2; shift ;;
        --error) error=$2; shift ;;
    esac
    shift
done
for rank in $(seq 0 $((${{SLURM_NTASKS:-1}} - 1))); do
    (
        export SLURM_PROCID=$rank SLURM_LOCALID=$rank
        place "$output"; exec > "$name"
        [ -n "$error" ] && place "$error" && exec 2> "$name"
        exec "$@"
    ) &
done
while true; do
    wait -n
    code=$?
    [ $code = 127 ] && exit 0  # no task is left
    [ $code = 0 ] || break
done
touch "${{0%/*}}/failed"
kill $(jobs -p) 2> /dev/null
wait
""",
    "sacct": f"""
state=RUNNING
[ -e "${{0%/*}}/failed" ] && state=FAILED
echo 'JobID|State|NodeList'
echo "7|$state|here"  # a job that is no array
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
