#!/bin/sh
# After files are in place. An upgrade stops nothing: what runs is replaced one process after the other, streams go on.
set -e

if [ "$1" = configure ]; then
  if ! getent passwd baton >/dev/null; then
    useradd --system --user-group --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin \
      --comment "Baton language model server" baton
  fi
  if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    # Not waited for: models load meanwhile. systemctl status and the journal tell how it went.
    if [ -n "$2" ] && [ "$(sed -n 's/^RELOAD_ON_UPGRADE=//p' /etc/default/baton 2>/dev/null)" != no ]; then
      systemctl list-units --plain --no-legend --state=active 'baton@*.service' | while read -r unit rest; do
        echo "baton: $unit is replaced process by process (systemctl reload $unit)"
        systemctl reload --no-block "$unit" </dev/null || :
      done
    fi
  fi
  # Those that systemd does not know: their owner may do it.
  if [ -n "$2" ]; then
    for exe in /proc/[0-9]*/exe; do
      program=$(readlink "$exe" 2>/dev/null) || continue
      case $program in
        /usr/lib/baton/*bin/baton-supervisor*) ;;
        *) continue ;;
      esac
      pid=${exe#/proc/}
      pid=${pid%/exe}
      if grep -q 'baton@' "/proc/$pid/cgroup" 2>/dev/null; then continue; fi
      echo "baton: process $pid runs the version before; its owner replaces it with  baton upgrade --run_dir DIR"
    done
  fi
  if [ -z "$2" ]; then
    echo "baton: baton serve   tries the demo model;   systemctl enable --now baton@1p1d   serves /etc/baton/1p1d.yaml"
  fi
fi
