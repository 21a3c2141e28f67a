#!/bin/bash
# One run on every worker of every slice of TPU VMs, from this terminal.
#
#   launch/tpu_vm.sh create --name=two --zone=us-west4-a --type=v5litepod-16 --slices=2
#   launch/tpu_vm.sh run --name=two --zone=us-west4-a -- \
#       --fdl_config=experiments.ssm_small --workdir=/mnt/runs/two
#   launch/tpu_vm.sh restart --name=two --zone=us-west4-a -- ...
#   launch/tpu_vm.sh delete --name=two --zone=us-west4-a
#
# The work directory has to be one that all workers share. Exit codes are those of the
# run: 0 done, 2 wrong, 3 diverged, 42 stopped after saving; after 42 it is started again
# unless it was stopped from here (Ctrl-C).
set -uo pipefail

usage() {
  cat <<'END'
usage: launch/tpu_vm.sh VERB --name=NAME --zone=ZONE [flags] [-- --fdl_config=... [--fdl...]]
  create    ask for the slices (a queued resource), wait for them, copy and install the code
  run       start the experiment everywhere, show every worker's lines, wait for the end
  restart   stop what runs there, after saving; copy the code as it is now; run
  delete    delete the slices
  --project=PROJECT     default: that of gcloud
  --type=v5litepod-16   accelerator type, for create
  --version=VERSION     runtime version, for create; default v2-alpha-tpuv5-lite
  --slices=1            how many; for create, then remembered by the queued resource
  --spot                for create
  --restarts=100        after exit code 42, at most so many times
  --wait_secs=86400     for the slices to be there; and 300 for a run to save
  --dry_run             print the gcloud commands, run nothing
Each verb can be given again: create finds what is there, delete what is gone.
END
}

fail() {
  echo "tpu_vm.sh: error: $1" >&2
  exit 2
}

say() { echo "tpu_vm.sh: $1" >&2; }

number() { # of the flag $1, at least $2
  if ! [[ ${1#*=} =~ ^[0-9]{1,9}$ ]] || [ "${1#*=}" -lt "$2" ]; then
    fail "$1: expected a whole number from $2."
  fi
  echo "${1#*=}"
}

verb=${1:-}
case $verb in
  create | run | restart | delete) shift ;;
  --help | "") usage && exit ;;
  *) fail "no such verb: $verb; expected create, run, restart or delete." ;;
esac
name='' zone='' project='' type=v5litepod-16 version=v2-alpha-tpuv5-lite
slices='' spot='' restarts=100 wait_secs=86400 dry_run=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --name=?*) name=${1#*=} ;;
    --zone=?*) zone=${1#*=} ;;
    --project=?*) project=${1#*=} ;;
    --type=?*) type=${1#*=} ;;
    --version=?*) version=${1#*=} ;;
    --slices=*) slices=$(number "$1" 1) || exit ;;
    --restarts=*) restarts=$(number "$1" 0) || exit ;;
    --wait_secs=*) wait_secs=$(number "$1" 0) || exit ;;
    --spot) spot=1 ;;
    --dry_run) dry_run=1 ;;
    *) fail "unknown flag or missing value: $1." ;;
  esac
  shift
done
[ $# -eq 0 ] || shift # the --
[[ $name =~ ^[a-z][-a-z0-9]{0,38}$ ]] || fail "--name=$name: expected up to 39 of a-z, 0-9 and -."
[ -n "$zone" ] || fail "--zone=ZONE is missing."
[ -d roxxel ] || fail "start it from the root of the repository, whose code it copies."
case "$verb: $*" in
  "create: " | "delete: ") ;;
  create* | delete*) fail "$verb takes no experiment: take away what is behind --." ;;
  *" --fdl_config="* | *" --fdl_config_file="*) ;;
  *) fail "no experiment: give its line behind --, as in -- --fdl_config=experiments.ssm_small." ;;
esac

where=("--zone=$zone" ${project:+"--project=$project"})
tpus=(gcloud compute tpus)
# Where a worker has the code, and the number of its process, below its home.
home=roxxel pid_file=roxxel.pid
poll_secs=${TPU_VM_POLL_SECS:-10}

do_or_show() {
  if [ -n "$dry_run" ]; then
    echo "${*@Q}"
  else
    "$@"
  fi
}

state() { # of the queued resource; empty where there is none
  "${tpus[@]}" queued-resources describe "$name" "${where[@]}" \
    '--format=value(state.state)' 2>/dev/null
}

nodes() { # names of the slices, one a line
  local count=${slices:-}
  if [ -z "$count" ] && [ -z "$dry_run" ]; then
    count=$("${tpus[@]}" queued-resources describe "$name" "${where[@]}" \
      '--format=value(tpu.nodeSpec[0].multisliceParams.nodeCount)' 2>/dev/null)
  fi
  if [ "${count:-1}" -le 1 ]; then
    echo "$name"
  else
    seq --format="$name-%g" 0 $((count - 1))
  fi
}

everywhere() { # the shell command $1 on all workers of all slices, side by side
  local node pid pids=() code=0
  while read -r node; do
    local ssh=("${tpus[@]}" tpu-vm ssh "$node" "${where[@]}" --worker=all "--command=$1")
    if [ -n "$dry_run" ]; then
      echo "${ssh[*]@Q}"
    else
      "${ssh[@]}" </dev/null 2>&1 | sed -u "s/^/[$node] /" &
      pids+=($!)
    fi
  done < <(nodes)
  for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
  return "$code"
}

install() {
  local node
  while read -r node; do
    do_or_show "${tpus[@]}" tpu-vm scp --recurse --compress pyproject.toml README.md \
      LICENSE roxxel configs experiments launch "$node:$home/" "${where[@]}" --worker=all \
      </dev/null || return
  done < <(nodes)
}

create() {
  local request=(queued-resources create "$name" "${where[@]}"
    "--accelerator-type=$type" "--runtime-version=$version" ${spot:+--spot})
  if [ "${slices:-1}" -le 1 ]; then
    request+=("--node-id=$name")
  else
    request+=("--node-count=$slices" "--node-prefix=$name")
  fi
  if [ -z "$dry_run" ] && [ -n "$(state)" ]; then
    say "$name is there already."
  else
    do_or_show "${tpus[@]}" "${request[@]}" || return
  fi
  [ -n "$dry_run" ] || await_active || return
  everywhere "mkdir -p $home" || return
  install || return
  everywhere "cd $home && python3 -m pip install --quiet 'jax[tpu]>=0.10' --editable '.[train]'"
}

await_active() {
  local until=$((SECONDS + wait_secs)) now last=''
  while now=$(state) && [ "$now" != ACTIVE ]; do
    [ "$now" = "$last" ] || say "$name is $now."
    last=$now
    case $now in FAILED | SUSPENDED) return 1 ;; esac
    if [ $SECONDS -ge $until ]; then
      say "$name is not there after $wait_secs s; create again goes on waiting."
      return 1
    fi
    sleep "$poll_secs"
  done
}

# The line that a worker's shell prints last: gcloud's own exit code says less.
ended='tpu_vm.sh: exit code'

attempt() { # the exit code of the run
  local log code
  log=$(mktemp)
  everywhere "$(worker_command "$@")" | tee "$log"
  code=$(sed -n "s/.*$ended //p" "$log" | sort -n | uniq | verdict)
  rm -f "$log"
  return "${code:-1}"
}

verdict() { # of the workers' codes: a cause before its consequences
  local codes code
  codes=$(cat)
  for code in 2 3 42; do
    if grep -qx "$code" <<<"$codes"; then echo "$code" && return; fi
  done
  tail -n 1 <<<"$codes"
}

worker_command() { # in a worker's shell; a run that is there already is not started twice
  local run=(python3 -m roxxel.main "$@")
  cat <<END
cd $home || exit 1
if kill -0 "\$(cat ../$pid_file 2>/dev/null)" 2>/dev/null; then
  echo "a run is there already; restart stops it"; echo "$ended 1"; exit 1
fi
PYTHONUNBUFFERED=1 ${run[*]@Q} &
echo \$! >../$pid_file
wait \$!
code=\$?
rm -f ../$pid_file
echo "$ended \$code"
exit \$code
END
}

stop() { # asks the run to save and end, and waits for it
  everywhere "pid=\$(cat $pid_file 2>/dev/null) || exit 0
kill -TERM \"\$pid\" 2>/dev/null || exit 0
for _ in \$(seq 3000); do kill -0 \"\$pid\" 2>/dev/null || exit 0; sleep 0.1; done
echo 'the run does not end'; exit 1"
}

run() {
  local code count=0
  if [ -n "$dry_run" ]; then
    everywhere "$(worker_command "$@")"
    return
  fi
  trap 'told=1; stop' INT TERM
  while true; do
    attempt "$@" &
    wait_for $!
    code=$waited
    [ "$code" -eq 42 ] && [ -z "$stopped" ] || return "$code"
    if [ $((count += 1)) -gt "$restarts" ]; then
      say "not started again: --restarts=$restarts are used up."
      return "$code"
    fi
    say "restart $count."
  done
}

stopped=''
wait_for() { # `waited`: the exit code of process $1; a signal ends a wait, not the process
  while true; do
    told=''
    wait "$1"
    waited=$?
    [ -n "$told" ] || return 0
    stopped=1
  done
}

case $verb in
  create) create ;;
  run) run "$@" ;;
  restart) stop && install && run "$@" ;;
  delete)
    if [ -z "$dry_run" ] && [ -z "$(state)" ]; then
      say "$name is not there."
      exit 0
    fi
    do_or_show "${tpus[@]}" queued-resources delete "$name" "${where[@]}" --force --quiet
    ;;
esac
