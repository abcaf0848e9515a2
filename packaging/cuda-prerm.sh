# An upgrade stops nothing; a removal ends the services that run these programs.
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  # Also one whose supervisor has just died: systemd starts it again in half a second.
  for unit in $(services cuda active,reloading,activating,deactivating); do
    systemctl stop "$unit" || :
  done
fi
