#!/usr/bin/env bash
# Make the runs of results/: every sweep at a small budget, each run on one core.
#
#     scripts/study/quick_results.sh CIFAR [JOBS]     CIFAR: folder of cifar-10-binary.tar.gz; JOBS side by side (2)
#
# Sweeps skip what is done, so the same command goes on after an interruption. Nobody should judge an
# attention by these runs: results/records.md says what they can show.
set -uo pipefail
cd "$(dirname "$0")/../.."

cifar=${1:?folder of the CIFAR-10 archive}
train=(.venv/bin/python train.py -m trainer=cpu trainer.threads=1 model.attention_dropout=0
       hydra/launcher=laptop "hydra.launcher.n_jobs=${2:-2}" retries=1)
leaderboard=(experiment=leaderboard protocol=quick compute=report)
listops=(task=listops task.n_train=20000 task.n_val=1000 task.n_test=2000
         task.min_length=20 task.max_length=256 task.max_depth=6 task.max_args=5)
pathfinder=(task=pathfinder task.n=4000 task.difficulty=easy)
image=(protocol=quick task=image task.source=files "task.path=$cifar" task.checksum=any)

for seed in 1 2 3; do
    "${train[@]}" experiment=demo attention='glob(*)' steps_share=3 runs_dir=runs/leaderboard_short seed=$seed
    for sweep in recipe_control ablation_m ablation_l ablation_kernel ablation_gate; do
        "${train[@]}" experiment=$sweep "${image[@]}" seed=$seed
    done
    "${train[@]}" "${leaderboard[@]}" "${listops[@]}" seed=$seed
    "${train[@]}" "${leaderboard[@]}" "${pathfinder[@]}" seed=$seed
done
