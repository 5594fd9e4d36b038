#!/usr/bin/env bash
# Run the tests with other versions of Python and torch, each pair in an environment of its own.
#
#     scripts/matrix.sh PYTHON TORCH [TESTS...]      scripts/matrix.sh python3.12 2.11.0 tests/luna
#
# Without TESTS the whole suite, in parts. The pair gets a clone of HEAD and the versions of
# constraints.txt, except for torch and Triton, which belong together. A row for the pair goes to
# results/tried.md. The same command after an interruption goes on with the tests that are left.
# Everything lies in .matrix (or $MATRIX); the environment, several GB with CUDA, is removed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v "${1:?an interpreter}") torch=${2:?a version of torch}
shift 2
name=${*:-the whole suite}
[ $# != 0 ] || set -- tests/luna tests/lra tests/golden tests/hydra_plugins tests/study
number=$("$python" -c 'import platform; print(platform.python_version())')
revision=$(git rev-parse --short HEAD)
pair=${MATRIX:-$PWD/.matrix}/python$number-torch$torch
logs=$pair/$revision
mkdir -p "$logs"

if [ ! -d "$logs/source" ]; then
    git clone -q . "$logs/source.partial"
    mv "$logs/source.partial" "$logs/source"
fi
if [ ! -e "$pair/installed" ]; then
    cp constraints.txt "$pair"
    if ! grep -qx "torch==$torch" constraints.txt; then
        sed -i "/^triton==/d; s/^torch==.*/torch==$torch/" "$pair/constraints.txt"
    fi
    "$python" "$logs/source/scripts/setup.py" "$pair/venv" dev --constraints "$pair/constraints.txt"
    touch "$pair/installed"
fi

for tests in "$@"; do
    log=$logs/$(tr -c 'a-z_\n' - <<<"$tests").log
    [ -e "$log" ] && continue
    # Unquoted, for its pattern. pytest ends with 1 where a test failed, which is a result too.
    (cd "$logs/source" && PYTHONPATH=$PWD "$pair/venv/bin/python" -m pytest -n "${WORKERS:-1}" \
        $tests >"$log.partial" 2>&1) || [ $? = 1 ]
    mv "$log.partial" "$log"
    echo "$tests: $(tail -n 1 "$log")"
done

# The last line of each log is "3 failed, 900 passed, 2 skipped in 61.20s".
outcome=$(tail -qn 1 "$logs"/*.log | grep -oE '[0-9]+ (failed|errors?|passed|skipped|xfailed)' |
    awk '{ n[$2] += $1 } END { for (k in n) printf "%s %s\n", n[k], k }' | sort -k2 | paste -sd, | sed 's/,/, /g')
build=$("$pair/venv/bin/python" -c 'import torch; print(torch.__version__)')
echo "| $number | $build | $name | $outcome | $revision | $(date +%F) |" | tee -a results/tried.md
rm -rf "$pair/venv" "$pair/installed"
