#!/bin/sh
# The installed Baton @VERSION@: serves, administers, upgrades. Needs sh, coreutils, awk, and curl to tell when it is ready.
# Made by `./baton package` from packaging/front.sh and the launcher's functions of the same purpose.
set -eu

self=$(readlink -f "$0")
prefix=$(dirname "$(dirname "$self")")
lib=$prefix/lib/baton
configs=$prefix/etc/baton
if [ "$prefix" = /usr ]; then configs=/etc/baton; fi
began=$(date +%s)

usage() {
  cat <<'END'
Usage: baton COMMAND [options]

  serve    start all processes, say when they are ready: baton serve --help
  ctl      talk to a running scheduler: baton ctl show workers; baton ctl help lists the commands
  top      workers, pools, queue and requests of a running scheduler, drawn again and again; q leaves
  explain  where a request's time went, by the X-Request-Id of its reply: baton explain ID [--json]
  trace    steps, pulls, requests and deaths of the next seconds as one file for Perfetto: baton trace --seconds 5 -o FILE
  upgrade  replace running processes by what is installed, one after the other; streams go on: baton upgrade --help
  plan     which roles and chunks serve a load best: baton plan --help
  doctor   say what is missing on this machine, and which devices reach each other
             --model DIR     also whether that model fits, by the number of a worker's ranks
  help, --version

As a service: systemctl start baton@NAME serves the configuration /etc/baton/NAME.yaml. See baton(1), baton.yaml(5).
END
}

upgrade_usage() {
  cat <<'END'
Usage: baton upgrade [--run_dir DIR] [--within SECONDS]

Has every process of a running Baton replaced by what is installed now, the supervisor included, one after the other: each is
up again before the next one ends. It stops at the first that is not up within SECONDS (600). Streams go on; where the new
programs speak another version of the protocol, front ends end their streams first, and nobody listens until all is up.

  --run_dir DIR     of the Baton that is meant (/tmp/baton-UID; of a service /run/baton-NAME)
  --within SECONDS  that each process has to be up again (600)

systemctl reload baton@NAME does the same to a service, and so does the installation of a newer package.
END
}

# --- The launcher's -------------------------------------------------------------------------------
@FUNCTIONS@
# --- In place of what the launcher builds -----------------------------------------------------------

programs_of() { # backend
  if [ "$1" = cuda ]; then say "$lib/cuda/bin"; else say "$lib/bin"; fi
}

prepare() { # backend
  [ -x "$(programs_of "$1")/baton-supervisor" ] ||
    die "the programs for device $1 are not installed; the package baton-cuda has those for GPUs"
  if ! have curl; then
    say "  note: there is no curl here, so that nobody says when it is ready"
    announce() { :; }
  fi
}

build_tools() { :; } # they are installed

gpu_and_compiler() {
  have nvidia-smi && nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || return 1
  [ -x "$(programs_of cuda)/baton-supervisor" ] && return 0
  say "  note: a GPU is here, but not the package baton-cuda: this serves on CPUs"
  return 1
}

# A user's own Baton, else the one service that runs.
ctl() {
  case " $* " in
    *" --socket"* | *" --config"* | *" --run-dir"* | *" --run_dir"* | *" --version "* | *" --help "* | *" -h "*) ;;
    *)
      if [ ! -d "/tmp/baton-$(id -u)" ]; then
        found=
        for folder in /run/baton-*; do
          if [ -d "$folder" ]; then found="$found $folder"; fi
        done
        case $found in
          '') ;;
          ' '*' '*) die "several run:$found; name one:  baton ctl --socket FOLDER/admin.sock ..." ;;
          *)
            if [ -S "${found# }/admin.sock" ]; then
              set -- --socket "${found# }/admin.sock" "$@"
            else # of several models: ctl finds their schedulers by the records
              set -- --run-dir "${found# }" "$@"
            fi
            ;;
        esac
      fi
      ;;
  esac
  exec "$lib/bin/baton-ctl" "$@"
}

upgrade() {
  run_dir=/tmp/baton-$(id -u) named=
  within=600
  while [ $# -gt 0 ]; do
    first=$(spelled "$1")
    shift
    set -- "$first" "$@"
    case $1 in
      -h | --help) upgrade_usage && return ;;
      --run_dir=*) run_dir=${1#*=} named=yes ;;
      --within=*) within=${1#*=} ;;
      --run_dir | --within)
        [ $# -ge 2 ] || die "$1 needs a value"
        if [ "$1" = --run_dir ]; then run_dir=$2 named=yes; else within=$2; fi
        shift
        ;;
      *) die "'$1' is no option of upgrade:  baton upgrade --help" ;;
    esac
    shift
  done
  check_run_dir "$run_dir" "$named"
  supervisor=$(supervisor_of "$run_dir")
  [ -n "$supervisor" ] || die "no supervisor runs in $run_dir; name its folder:  baton upgrade --run_dir DIR"
  program=$(readlink "/proc/$supervisor/exe")
  program=${program% (deleted)} # the package has put another file in its place
  case $program in
    "$lib"/*) ;;
    *) die "process $supervisor runs $program, which is not installed here" ;;
  esac
  plan=$(plan_of "$supervisor" "$program") || die "the new programs do not take the options of process $supervisor"
  # shellcheck disable=SC2046
  exec "${program%/*}/baton-ctl" --run-dir "$run_dir" $(one_socket "$(plan_value admin)") restart all --rolling --within "$within"
}

# What baton@NAME.service starts. Status 2 is not tried again.
service() { # name
  [ $# = 1 ] || die "baton service NAME is what baton@NAME.service starts"
  config=$configs/$1.yaml
  if ! [ -r "$config" ]; then
    printf 'baton: cannot read the configuration %s\n' "$config" >&2
    exit 2
  fi
  backend=cpu
  if grep -Eq '^[^#]*device: *cuda' "$config"; then backend=cuda; fi
  (prepare $backend) || exit 2
  exec "$(programs_of $backend)/baton-supervisor" --config "$config" --run_dir "${RUNTIME_DIRECTORY:-/run/baton-$1}"
}

doctor() {
  doctor_options "$@"
  problems=0
  flags=$(grep -m 1 '^flags' /proc/cpuinfo || :)
  for flag in avx2 fma bmi2; do
    problem=
    case " $flags " in *" $flag "*) ;; *) problem="this CPU lacks it" ;; esac
    check "CPU instructions $flag" "$problem" "Baton needs an x86-64-v3 CPU (2013 or later)"
  done
  for program in "$lib"/bin/baton-* "$lib"/cuda/bin/baton-*; do
    [ -e "$program" ] || continue
    problem=$(ldd "$program" 2>&1 | awk '/not found/ { printf "%s%s", n++ ? ", " : "lacks ", $1 }')
    check "${program#"$lib/"}" "$problem" "install the package again, or take the portable archive"
  done
  if [ -d "$lib/cuda/bin" ]; then
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || driver=
    problem=
    case ${driver%%.*} in
      '' | *[!0-9]*) problem="nvidia-smi names none" ;;
      *) [ "${driver%%.*}" -ge 580 ] || problem="CUDA 13 needs 580" ;;
    esac
    check "a GPU's driver${driver:+ $driver}" "$problem" "install NVIDIA's driver, 580 or later (in a container: the NVIDIA container toolkit)"
  fi
  problem=
  have python3 || problem="not there"
  check "python3, for chat templates" "$problem" "apt-get install python3   (the demo model needs none)"
  problem=
  have curl || problem="not there"
  check "curl, which serve asks when it is ready" "$problem" "apt-get install curl"
  shm=$(df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')
  problem=
  [ "${shm:-0}" -ge 512 ] || problem="the demo's two KV pools need 512"
  check "${shm:-0} MB free in /dev/shm" "$problem" "mount -o remount,size=1g /dev/shm (docker: --shm-size 1g)"
  if port_taken "$port"; then say "note     port $port is taken: baton serve --port N"; fi
  doctor_reach
  if [ -n "$model" ]; then doctor_model "$lib/bin"; fi
  if [ $problems = 0 ]; then
    say "Nothing is missing."
  else
    say "$problems missing."
    return 1
  fi
}

command=${1:-help}
if [ $# -gt 0 ]; then shift; fi
case $command in
  serve)
    case " $* " in *" --device cuda "* | *" --device=cuda "*) prepare cuda ;; esac
    serve "$@"
    ;;
  service) service "$@" ;;
  ctl) ctl "$@" ;;
  top | explain | trace) ctl "$command" "$@" ;;
  upgrade) upgrade "$@" ;;
  plan) exec "$lib/bin/baton-plan" "$@" ;;
  doctor) doctor "$@" ;;
  help | --help | -h) usage ;;
  --version | version) say "baton @VERSION@" ;;
  *)
    usage >&2
    die "unknown command '$command'"
    ;;
esac
