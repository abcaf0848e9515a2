# The user stays: files may belong to it.
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
fi
if [ "$1" = purge ]; then
  rm -rf /run/baton-*
  rmdir /etc/baton 2>/dev/null || :
fi
