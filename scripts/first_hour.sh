#!/usr/bin/env bash
# The first hour on a GPU: what is right, how fast it is, the first full runs.
#
#     scripts/first_hour.sh [--list]       or: make first-hour; again until it says done
#         --list  print the steps and run none
#
# Every step is a process of at most ten minutes, and what it prints goes into first-hour/STEP.txt.
# A step that ended well is not repeated. PYTHON names an interpreter other than that of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=first-hour
only_list=${1:-}
left=0

step() {
    local name=$1 code=0
    shift
    if [[ $only_list == --list ]]; then
        echo "$name: $*"
    elif [[ ! -e $out/$name.done ]]; then
        timeout 600 "$@" >"$out/$name.txt" 2>&1 || code=$?
        case $code in
            0) touch "$out/$name.done" && echo "$name: done" && return ;;
            124 | 142) echo "$name: not finished yet" ;;  # 142: stopped by limit_minutes
            *) echo "$name: FAILED, exit $code, see $out/$name.txt" ;;
        esac
        left=$((left + 1))
    fi
}

[[ $only_list ]] || mkdir -p "$out"
step environment "$python" -m torch.utils.collect_env
step tests "$python" -m pytest -m gpu
step correctness "$python" - <<'END'  # outputs and gradients against the CPU in float64
import copy, luna, torch
for name in luna.names():
    torch.manual_seed(0)
    exact = luna.build(name, n_heads=2, head_dim=32, max_len=256).double().eval()
    q, k, v = torch.randn(3, 2, 2, 256, 32, dtype=torch.float64).unbind()
    x = torch.randn(2, 256, 64, dtype=torch.float64)
    weights = torch.randn_like(q)  # a sum of squares is constant where outputs are normalised
    results = []
    for method, like in (exact, torch.empty(0).double()), (copy.deepcopy(exact).float().cuda(), torch.empty(0).cuda()):
        leaves = [tensor.to(like).requires_grad_() for tensor in (q, k, v)]
        o = method(*leaves, x=x.to(like))
        gradients = torch.autograd.grad((o * weights.to(like)).sum(), leaves, allow_unused=True, materialize_grads=True)
        results.append([tensor.detach().double().cpu() for tensor in (o, *gradients)])
    errors = [float((b - a).norm() / a.norm().clamp_min(1e-9)) for a, b in zip(*results)]
    print(f"{name:16}", *(f"{error:.0e}" for error in errors), "LARGE" if max(errors) > 1e-3 else "")
END
step attention "$python" -m lra bench attention --device cuda --write "$out/bench"
step causal "$python" -m lra bench attention --causal --device cuda --write "$out/bench"
for task in listops image text retrieval pathfinder; do
    step "steps-$task" "$python" -m lra plan -m "task=$task" attention=luna,softmax,linear trainer=gpu
done
step train "$python" -m lra bench train task=listops attention=luna trainer=gpu --write "$out/bench"
for task in listops image text; do
    for attention in luna softmax linear; do
        step "run-$task-$attention" "$python" -m lra train "task=$task" "attention=$attention" trainer=gpu limit_minutes=9
    done
    step "run-$task-recommended" "$python" -m lra train "task=$task" attention=luna attention.preset=recommended \
        compute=report trainer=gpu limit_minutes=9
done
[[ $only_list ]] && exit
tar -czf "$out.tar.gz" "$out"
((left)) && echo "$left steps are left: repeat the command" && exit 1
echo "done; the file to attach to a report is $out.tar.gz"
