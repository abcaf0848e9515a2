# After files are in place. An upgrade stops nothing: what runs is replaced one process after the other, streams go on.

if [ "$1" = configure ]; then
  if ! getent passwd baton >/dev/null; then
    useradd --system --user-group --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin \
      --comment "Baton language model server" baton
  fi
  if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    if [ -n "$2" ]; then reload_services cpu; fi
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
