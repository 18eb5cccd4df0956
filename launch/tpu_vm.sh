#!/usr/bin/env bash
# Runs one experiment, as it was last committed, on an existing VM with a TPU and
# brings its report back.
#
#   launch/tpu_vm.sh [--dry-run] [--all | --gce] NAME ZONE CONFIG [OPTION ...]
#
# NAME and ZONE are those of the VM; CONFIG is a file of configs/, with its
# variant; options are --config.KEY=VALUE. The VM needs Python 3.11 or later
# (PYTHON names it there). What was compiled is kept there for the next run.
# --dry-run prints the commands instead of running them.
#
# --all is for a slice of several hosts: each of them runs, as processes of one
# experiment. Give a mesh of all its devices:
#
#   launch/tpu_vm.sh --all my-v4-16 us-central2-b configs/ende_t5small.py \
#     --config.mesh.data=2 --config.mesh.model=4 --config.decode.batch=8
#
# --gce is for a VM of Compute Engine, by which newer chips come; the TPU API is
# in maintenance. Slices of several hosts then are GKE's: launch/jobset.yaml.
set -euo pipefail

dry='' mode=''
while true; do
  case "${1:-}" in
    --dry-run) dry=1 ;;
    --all | --gce) mode+=$1 ;;
    *) break ;;
  esac
  shift
done
if [ $# -lt 3 ] || [ "$mode" = --all--gce ] || [ "$mode" = --gce--all ]; then
  echo "usage: launch/tpu_vm.sh [--dry-run] [--all | --gce] NAME ZONE CONFIG" \
    "[OPTION ...]" >&2
  exit 2
fi
name=$1 zone=$2 config=$3
shift 3
cloud=(gcloud compute tpus tpu-vm)
all=("--zone=$zone" --worker=0) first=("--zone=$zone" --worker=0)
case "$mode" in
  --all*)
    all=("--zone=$zone" --worker=all)
    # The TPU itself tells each process of the others.
    set -- --config.hosts.count=0 "$@"
    ;;
  --gce*) cloud=(gcloud compute) all=("--zone=$zone") first=("--zone=$zone") ;;
esac

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
run "${cloud[@]}" scp "$bundle" "$name:specjax.bundle" "${all[@]}"
options=$(printf ' %q' --config "$config" "$@" --config.out=out/tpu_vm)
run "${cloud[@]}" ssh "$name" "${all[@]}" --command="\
git init -q specjax && cd specjax && git fetch -q ../specjax.bundle HEAD && \
git checkout -q FETCH_HEAD && \
${PYTHON:-python3.11} -m venv .venv && . .venv/bin/activate && \
pip install -q -e '.[hub,tpu]' && \
JAX_COMPILATION_CACHE_DIR=\$HOME/.cache/specjax \
python -m specjax.run$options"
run mkdir -p out
# The first host has the report.
run "${cloud[@]}" scp --recurse "$name:specjax/out/tpu_vm" "out/" "${first[@]}"
