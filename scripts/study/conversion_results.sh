#!/usr/bin/env bash
# Make the conversion runs of results/: MiniLM on three GLUE tasks, four methods and the control, three seeds.
#
#     scripts/study/conversion_results.sh MODEL GLUE [JOBS]
#         MODEL  folder of all-MiniLM-L6-v2 (config, tokenizer, safetensors)
#         GLUE   folder with SST-2, MRPC and RTE in GLUE's own layout
#         JOBS   runs side by side, one core each (2)
#
# Finished runs are skipped and interrupted ones go on, so the same command continues after a stop.
set -uo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
jobs=${3:-2}
convert=(.venv/bin/python convert.py model=minilm "model.path=${1:?folder of the model}"
         "data.path=${2:?folder of GLUE}" recipe=small)
student=(recipe.epochs=1 recipe.train_examples=2500)

run() { printf '%q ' "${convert[@]}" "$@"; printf '\n'; }

teachers() {
    run stage=teacher task=sst2 recipe.epochs=2
    run stage=teacher task=mrpc recipe.epochs=4
    run stage=teacher task=rte recipe.epochs=5 recipe.lr=1e-4
}

students() {
    for seed in 1 2 3; do
        for task in mrpc rte sst2; do
            run task=$task seed=$seed "${student[@]}" attention=luna
            run task=$task seed=$seed "${student[@]}" attention=softmax
            run task=$task seed=$seed "${student[@]}" attention=hedgehog
            run task=$task seed=$seed "${student[@]}" attention=t2r                          # T2R-HH
            run task=$task seed=$seed "${student[@]}" attention=t2r recipe.stage1=null        # T2R
        done
    done
    listing=(attention=luna attention.preset=listing recipe.stage1_lr=1e-2)
    for seed in 1 2 3; do  # what do the listing's feature map and more fitting do?
        run task=mrpc seed=$seed "${student[@]}" "${listing[@]}"
        run task=mrpc seed=$seed "${student[@]}" attention=luna recipe.stage1_steps=450
        run task=mrpc seed=$seed "${student[@]}" attention=luna recipe.phi_lr=1e-3
        run task=mrpc seed=$seed "${student[@]}" attention=luna recipe.phi_lr=1e-3 recipe.joint=1
    done
    run task=sst2 seed=1 "${student[@]}" "${listing[@]}"
    for task in mrpc sst2; do  # what does stage 1 buy?
        run task=$task seed=1 "${student[@]}" attention=luna recipe.stage1=null
    done
    run task=mrpc seed=1 "${student[@]}" attention=hedgehog recipe.stage1=null
}

teachers | xargs -P "$jobs" -I{} bash -c '{}'
students | xargs -P "$jobs" -I{} bash -c '{}'
