# After an upgrade's files are in place: the services that run these programs. The package baton leaves them alone, whose
# scripts may run before these files are there.
if [ "$1" = configure ] && [ -n "$2" ] && [ -d /run/systemd/system ]; then
  reload_services cuda
fi
