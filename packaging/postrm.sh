# The user stays: files may belong to it.
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
fi
if [ "$1" = purge ]; then
  # What `systemctl enable baton@NAME` made: it leads nowhere now.
  for link in /etc/systemd/system/*.wants/baton@*.service; do
    case $(readlink "$link") in */baton@.service) rm -f "$link" ;; esac
  done
  rm -rf /run/baton-*
  rmdir /etc/baton 2>/dev/null || :
fi
