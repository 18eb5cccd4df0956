#!/usr/bin/env bash
# Runs one experiment, as it was last committed, on an existing Cloud TPU VM
# and brings its report back.
#
#   launch/tpu_vm.sh [--dry-run] [--all] NAME ZONE CONFIG [--config.KEY=VALUE ...]
#
# NAME and ZONE are those of the VM; CONFIG is a file of configs/, with its
# variant. The VM needs Python 3.11 or later (PYTHON names it there). What was
# compiled is kept there for the next run. --dry-run prints the commands instead
# of running them.
#
# --all is for a slice of several hosts: each of them runs, as processes of one
# experiment. Give a mesh of all its devices:
#
#   launch/tpu_vm.sh --all my-v4-16 us-central2-b configs/ende_t5small.py \
#     --config.mesh.data=2 --config.mesh.model=4 --config.decode.batch=8
set -euo pipefail

dry='' workers=0
while true; do
  case "${1:-}" in
    --dry-run) dry=1 ;;
    --all) workers=all ;;
    *) break ;;
  esac
  shift
done
if [ $# -lt 3 ]; then
  echo "usage: launch/tpu_vm.sh [--dry-run] [--all] NAME ZONE CONFIG" \
    "[OPTION ...]" >&2
  exit 2
fi
name=$1 zone=$2 config=$3
shift 3
if [ "$workers" = all ]; then
  # The TPU itself tells each process of the others.
  set -- --config.hosts.count=0 "$@"
fi

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
  --zone="$zone" --worker="$workers"
options=$(printf ' %q' --config "$config" "$@" --config.out=out/tpu_vm)
run gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" \
  --worker="$workers" --command="\
git init -q specjax && cd specjax && git fetch -q ../specjax.bundle HEAD && \
git checkout -q FETCH_HEAD && \
${PYTHON:-python3.11} -m venv .venv && . .venv/bin/activate && \
pip install -q -e '.[hub,tpu]' && \
JAX_COMPILATION_CACHE_DIR=\$HOME/.cache/specjax \
python -m specjax.run$options"
run mkdir -p out
# The first host has the report.
run gcloud compute tpus tpu-vm scp --recurse \
  "$name:specjax/out/tpu_vm" "out/" --zone="$zone" --worker=0
