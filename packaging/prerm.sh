#!/bin/sh
# An upgrade stops nothing (postinst); a removal ends the services.
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  systemctl stop 'baton@*.service' || :
fi
