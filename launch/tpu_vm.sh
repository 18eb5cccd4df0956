#!/usr/bin/env bash
# Runs one experiment, as it was last committed, on an existing Cloud TPU VM
# and brings its report back.
#
#   launch/tpu_vm.sh [--dry-run] NAME ZONE CONFIG [--config.KEY=VALUE ...]
#
# NAME and ZONE are those of the VM; CONFIG is a file of configs/, with its
# variant. The VM needs Python 3.11 or later (PYTHON names it there). --dry-run
# prints the commands instead of running them.
set -euo pipefail

dry=
if [ "${1:-}" = --dry-run ]; then
  dry=1
  shift
fi
if [ $# -lt 3 ]; then
  echo "usage: launch/tpu_vm.sh [--dry-run] NAME ZONE CONFIG [OPTION ...]" >&2
  exit 2
fi
name=$1 zone=$2 config=$3
shift 3

run() {
  if [ -n "$dry" ]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

cd "$(dirname "$0")/.."
bundle=$(mktemp -t specjax.XXXXXX.bundle)
trap 'rm -f "$bundle"' EXIT
run git bundle create -q "$bundle" HEAD
run gcloud compute tpus tpu-vm scp "$bundle" "$name:specjax.bundle" \
  --zone="$zone"
options=$(printf ' %q' --config "$config" "$@" --config.out=out/tpu_vm)
run gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --command="\
git init -q specjax && cd specjax && git fetch -q ../specjax.bundle HEAD && \
git checkout -q FETCH_HEAD && \
${PYTHON:-python3.11} -m venv .venv && . .venv/bin/activate && \
pip install -q 'jax[tpu]' -e '.[hub]' && python -m specjax.run$options"
run mkdir -p out
run gcloud compute tpus tpu-vm scp --recurse \
  "$name:specjax/out/tpu_vm" "out/" --zone="$zone"
