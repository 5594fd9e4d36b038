#!/usr/bin/env bash
# The runs of results/records/recall: what each attention can hold at 64 features. About four hours
# on two cores; the same command goes on where it stopped.
#
# Rates are searched with seed 1; seeds 2 and 3 have the rate that was then best on dev.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
common=(hydra/launcher=laptop experiment=recall trainer=cpu trainer.threads=1)
run() { .venv/bin/lra train -m "${common[@]}" "$@"; }
again() { run seed=2,3 protocol.recipe.lr="$1" "${@:2}"; }

methods=softmax,luna,linear,performer,hedgehog,t2r,cosformer,rff,uniform
run attention=$methods task.pairs=32 protocol.recipe.lr=1e-3,3e-3,1e-2 seed=1
run attention=$methods task.pairs=16,64 protocol.recipe.lr=1e-3,3e-3 seed=1
again 3e-3 attention=softmax,linear,performer,hedgehog task.pairs=32,64
again 1e-3 attention=luna,cosformer,rff,uniform task.pairs=32,64
again 1e-2 attention=t2r task.pairs=32
again 1e-3 attention=t2r task.pairs=64
run attention=$methods task.pairs=128 protocol.recipe.lr=1e-3,3e-3 seed=1
again 3e-3 attention=linear,hedgehog task.pairs=128
again 1e-3 attention=softmax,luna,performer,cosformer,rff,t2r,uniform task.pairs=128

# LUNA at the same width: number of projections and functions, and the output of the functions.
luna() { "${@:4}" attention=luna attention.M="$1" attention.L="$2" attention.nonneg="$3" runs_dir=runs/recall_luna; }
for shape in "64 1" "32 2" "16 4" "8 8" "4 16"; do
	for output in true exp; do
		# shellcheck disable=SC2086
		luna $shape $output run task.pairs=32 protocol.recipe.lr=1e-3,3e-3 seed=1
		# shellcheck disable=SC2086
		luna $shape $output again 3e-3 task.pairs=32
	done
done
luna 32 2 exp again 1e-3 task.pairs=32
for shape in "64 1" "32 2" "8 8"; do
	# shellcheck disable=SC2086
	luna $shape false run task.pairs=32 protocol.recipe.lr=1e-3,3e-3 seed=1
	# shellcheck disable=SC2086
	luna $shape false again 1e-3 task.pairs=32
done
luna 64 1 exp run task.pairs=16,64 protocol.recipe.lr=1e-3,3e-3 seed=1
luna 64 1 exp again 3e-3 task.pairs=64
luna 8 8 false run task.pairs=64 protocol.recipe.lr=1e-3 seed=1,2,3
luna 64 1 exp run task.pairs=128 protocol.recipe.lr=1e-3,3e-3 seed=1
luna 64 1 exp again 1e-3 task.pairs=128
luna 8 8 false run task.pairs=128 protocol.recipe.lr=1e-3,3e-3 seed=1
luna 8 8 false again 1e-3 task.pairs=128

# Methods of other kinds: 64 landmarks, agents, pivots or rows, or states of about this size.
run attention=agent,based,flowformer,luna2021,mala,rebased task.pairs=32 protocol.recipe.lr=1e-3,3e-3,1e-2 seed=1
again 1e-3 attention=agent,rebased task.pairs=32
again 3e-3 attention=based,flowformer task.pairs=32
again 1e-2 attention=luna2021,mala task.pairs=32
run attention=based,mala,rebased task.pairs=64 protocol.recipe.lr=1e-3,3e-3 seed=1
again 3e-3 attention=based,mala,rebased task.pairs=64
run attention=nystrom,polaformer,linformer,skyformer,kernelized,performer_relu,reformer,informer,synthesizer,local,lotformer \
	task.pairs=32 protocol.recipe.lr=1e-3,3e-3 seed=1
again 1e-3 attention=nystrom,kernelized,reformer,informer,local task.pairs=32
again 3e-3 attention=polaformer,linformer,skyformer,performer_relu,synthesizer,lotformer task.pairs=32
