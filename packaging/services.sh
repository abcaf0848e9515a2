# shellcheck shell=sh
# Put before the scripts of both packages (package.py): each tends the services that run its own programs.

# The services whose programs are for a device, "cpu" or "cuda": those of the process that runs, or, between two of them, what
# `baton service` would start.
services() { # device states
  systemctl list-units --plain --no-legend --state="$2" 'baton@*.service' | while read -r unit rest; do
    name=${unit#baton@}
    name=${name%.service}
    device=cpu
    pid=$(systemctl show --property MainPID --value "$unit" 2>/dev/null) || pid=
    program=$(readlink "/proc/${pid:-0}/exe" 2>/dev/null) || program=
    case $program in
      /usr/lib/baton/cuda/*) device=cuda ;;
      /usr/lib/baton/*) ;;
      *) if grep -Eqs '^[^#]*device: *cuda' "/etc/baton/$name.yaml"; then device=cuda; fi ;;
    esac
    if [ "$device" = "$1" ]; then printf '%s\n' "$unit"; fi
  done
}

# Not waited for: models load meanwhile. systemctl status and the journal tell how it went.
reload_services() { # device
  # As a shell or systemd reads it: in quotes or not, the last one.
  answer=$(sed -n 's/^RELOAD_ON_UPGRADE=["'\'']\{0,1\}\([a-z]*\).*/\1/p' /etc/default/baton 2>/dev/null | tail -n 1)
  if [ "$answer" = no ]; then return; fi
  for unit in $(services "$1" active,reloading); do
    echo "baton: $unit is replaced process by process (systemctl reload $unit)"
    systemctl reload --no-block "$unit" </dev/null || :
  done
}
