# An upgrade stops nothing; a removal ends the services that run these programs.
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  for unit in $(services cuda); do
    systemctl stop "$unit" || :
  done
fi
