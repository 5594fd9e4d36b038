#!/usr/bin/env bash
# Run tests again as if on other machines: other instruction sets, thread counts, locale, time zone
# and user, a home folder that cannot be written, a path with spaces.
#
#     scripts/portable.sh [quick]     quick: two conditions and few tests, for CI
#
# Emulated are the dispatchers of torch, oneDNN, MKL and NumPy and the target of numba: none of them
# executes instructions newer than it is told, so results round as they do on an older processor.
set -uo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python

# The tests that compare floating-point numbers, and those that meet files, users and processes.
numbers=(tests/golden/test_golden.py tests/luna/test_*.py tests/luna/attention tests/luna/kernels tests/lra/model tests/lra/training/test_optim.py
         tests/lra/data/*/test_generator.py tests/lra/data/test_image.py tests/lra/report/test_stats.py
         tests/lra/training/test_run.py::test_the_first_losses_are_the_golden_ones)
surroundings=(tests/lra/data tests/lra/report tests/lra/training/test_run.py tests/lra/training/test_checkpoints.py
              tests/lra/sweeps/test_status.py tests/lra/settings tests/luna/kernels)
few=(tests/lra/training/test_run.py::test_the_first_losses_are_the_golden_ones
     tests/lra/data/listops/test_generator.py tests/lra/data/pathfinder/test_generator.py
     tests/lra/report/test_stats.py)

features() {  # of NumPy on this machine whose names match; only these can be switched off
    "$python" -c "
import re; from numpy._core._multiarray_umath import __cpu_dispatch__ as known, __cpu_features__ as has
print(*(f for f in known if has[f] and re.search('$1', f)))"
}
oldest=(ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2
        NUMBA_CPU_NAME=generic "NPY_DISABLE_CPU_FEATURES=$(features .)")
avx2=(ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
      NUMBA_CPU_NAME=haswell "NPY_DISABLE_CPU_FEATURES=$(features '512|V4')")
threads=(OMP_NUM_THREADS=4 MKL_NUM_THREADS=4)
abroad=(LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONUTF8=0 TZ=XYZ-12:45 HOME=/proc)  # ASCII; closed even to root

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"

as_user() { "$@"; }
as_root() { unshare --map-root-user "$@"; }
if [ "$(id -u)" = 0 ]; then
    as_root() { "$@"; }
    # nobody, who may read everything (Python may lie in root's home) and write what is nobody's
    as_user() {
        setpriv --reuid=65534 --regid=65534 --clear-groups \
            --inh-caps=+dac_read_search --ambient-caps=+dac_read_search "$@"
    }
fi

# condition NAME USER VARIABLE=VALUE... -- TEST...
condition() {
    local name=$1 user=$2 variables=() tree="$folder/with spaces/$1"
    shift 2
    while [ "$1" != -- ]; do variables+=("$1"); shift; done
    shift
    if ! "as_$user" true 2>/dev/null; then
        echo "NOT RUN: $name, because $(id -un) cannot become $user here"
        return
    fi
    local temporary="$folder/tmp-$name"  # without a space, for torch calls g++ with bare paths
    mkdir -p "$tree" "$temporary"
    git ls-files -z --cached --others --exclude-standard | tar --null -T - -c | tar -x -C "$tree"
    [ "$(id -u)" != 0 ] || [ "$user" = root ] || chown -R 65534:65534 "$tree" "$temporary"
    local status=0
    (cd "$tree" && "as_$user" env "PYTHONPATH=$tree" "TMPDIR=$temporary" "${variables[@]}" \
        "$python" -m pytest -n 0 -p no:cacheprovider "$@") >"$folder/$name.log" 2>&1 || status=$?
    echo "$name, as $user: ${variables[*]}"
    tail -n "$([ $status = 0 ] && echo 1 || echo 60)" "$folder/$name.log"
    return $status
}

failed=0
if [ "${1:-}" = quick ]; then
    condition oldest user "${oldest[@]}" "${abroad[@]}" -- "${few[@]}" & first=$!
    condition avx2 root "${avx2[@]}" "${threads[@]}" TZ=XYZ+11 -- "${few[@]}" || failed=1
    wait "$first" || failed=1
else
    condition oldest user "${oldest[@]}" -- "${numbers[@]}" || failed=1
    condition avx2 user "${avx2[@]}" "${threads[@]}" -- "${numbers[@]}" || failed=1
    condition abroad user "${abroad[@]}" -- "${surroundings[@]}" || failed=1
    condition root root "${abroad[@]}" -- "${surroundings[@]}" || failed=1
fi
exit $failed
