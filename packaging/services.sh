# Put before the scripts of both packages (package.py): each tends the services that run its own programs.

# The running services that are for a device, "cpu" or "cuda". What a service starts is asked in the same way by `baton service`.
services() { # device
  systemctl list-units --plain --no-legend --state=active,reloading 'baton@*.service' | while read -r unit rest; do
    name=${unit#baton@}
    name=${name%.service}
    device=cpu
    if grep -Eqs '^[^#]*device: *cuda' "/etc/baton/$name.yaml"; then device=cuda; fi
    if [ "$device" = "$1" ]; then echo "$unit"; fi
  done
}

# Not waited for: models load meanwhile. systemctl status and the journal tell how it went.
reload_services() { # device
  if [ "$(sed -n 's/^RELOAD_ON_UPGRADE=//p' /etc/default/baton 2>/dev/null)" = no ]; then return; fi
  for unit in $(services "$1"); do
    echo "baton: $unit is replaced process by process (systemctl reload $unit)"
    systemctl reload --no-block "$unit" </dev/null || :
  done
}
