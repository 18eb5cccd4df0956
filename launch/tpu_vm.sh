#!/usr/bin/env bash
# Runs one experiment, as it was last committed, on an existing VM with a TPU,
# and brings its report back to out/tpu_vm. One text (--config.data.text) is
# shown, and has no report.
#
#   launch/tpu_vm.sh [--dry-run] [--all | --gce] [--project=PROJECT] \
#     NAME ZONE CONFIG [OPTION ...]
#
# NAME and ZONE are those of the VM, PROJECT is gcloud's own if left out; CONFIG
# is a file of configs/, with its variant; options are --config.KEY=VALUE. The
# VM needs Python 3.11 or later (PYTHON names it there). What was compiled is
# kept there for the next run. --dry-run prints the commands instead of running
# them.
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

fail() {
  echo "launch/tpu_vm.sh: $1" >&2
  exit 2
}

dry='' hosts=one project=''
while [ $# -gt 0 ]; do
  case "$1" in
    --dry-run) dry=1 ;;
    --project=?*) project=${1#*=} ;;
    --all | --gce)
      [ "$hosts" = one ] || fail 'give one of --all and --gce'
      hosts=${1#--}
      ;;
    -*) fail "$1: there is no such option; a run's own come after CONFIG" ;;
    *) break ;;
  esac
  shift
done
example='my-v5e us-west4-a configs/ende_t5small.py'
[ $# -ge 3 ] || fail "give NAME, ZONE and CONFIG, such as $example"
name=$1 zone=$2 config=$3
shift 3
[[ $zone =~ ^[a-z]+-[a-z]+[0-9]+-[a-z]+$ ]] ||
  fail "ZONE: give one such as us-west4-a, got '$zone'"
text=''
for option; do
  case "$option" in
    --config.out | --config.out=*)
      fail "OPTION: leave out --config.out; a report comes to out/tpu_vm"
      ;;
    --config.data.text=*) text=${option#*=} ;;
    --config.*) ;;
    *) fail "OPTION: give --config.KEY=VALUE, got '$option'" ;;
  esac
done

run() {
  if [ -n "$dry" ]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
git cat-file -e "HEAD:${config%%:*}" 2>/dev/null ||
  fail "CONFIG: give a file that is committed here, got '$config'"
if [ -z "$dry$project" ]; then
  [ -n "$(gcloud config get-value project 2>/dev/null)" ] ||
    fail 'give --project=PROJECT; gcloud has none of its own'
fi

cloud=(gcloud compute tpus tpu-vm)
where=("--zone=$zone")
[ -z "$project" ] || where+=("--project=$project")
first=("${where[@]}" --worker=0) all=("${where[@]}" --worker=0)
case "$hosts" in
  all)
    all=("${where[@]}" --worker=all)
    # The TPU itself tells each process of the others.
    set -- --config.hosts.count=0 "$@"
    ;;
  gce) cloud=(gcloud compute) first=("${where[@]}") all=("${where[@]}") ;;
esac
words=$(printf ' %q' --config "$config" "$@" --config.out=out/tpu_vm)
python=$(printf %q "${PYTHON:-python3.11}")
bundle=$(mktemp -t specjax.XXXXXX.bundle)
trap 'rm -f "$bundle"' EXIT

run cd "$PWD"
run git bundle create -q "$bundle" HEAD
run "${cloud[@]}" scp "$bundle" "$name:specjax.bundle" "${all[@]}"
run "${cloud[@]}" ssh "$name" "${all[@]}" --command="\
git init -q specjax && cd specjax && git fetch -q ../specjax.bundle HEAD && \
git checkout -q FETCH_HEAD && \
$python -m venv .venv && . .venv/bin/activate && \
pip install -q -e '.[hub,tpu]' && mkdir -p ~/.cache/specjax && \
JAX_COMPILATION_CACHE_DIR=\$HOME/.cache/specjax \
python -m specjax.run$words"
run mkdir -p out
if [ -z "$text" ]; then
  # The first host has the report.
  run "${cloud[@]}" scp --recurse "$name:specjax/out/tpu_vm" out/ "${first[@]}"
fi
if [ "$hosts" = all ]; then
  # JAX has the first one alone write what was compiled; each reads its own.
  run "${cloud[@]}" scp --recurse "$name:.cache/specjax" out/ "${first[@]}"
  run "${cloud[@]}" scp --recurse out/specjax "$name:.cache/" "${all[@]}"
fi
