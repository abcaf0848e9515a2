# An upgrade stops nothing (postinst); a removal ends the services.
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  systemctl stop 'baton@*.service' || :
fi
