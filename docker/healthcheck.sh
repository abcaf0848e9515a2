#!/bin/bash
# healthcheck NAME: 0 if the process is well. A front end must answer /health with 200; the others
# must have come round in their main loop within the last five seconds: of a worker
# of BATON_RANKS processes (NAME.0, NAME.1, ...) each.
set -eu
name=$1
run_dir=${BATON_RUN_DIR:-/run/baton}
ranks=${BATON_RANKS:-1}
for ((rank = 0; rank < ranks; ++rank)); do
  process=$name
  if [ "$ranks" -gt 1 ]; then process=$name.$rank; fi
  touched=$(stat -c %Y "$run_dir/$process.alive") # no such file: it ends here
  [ $(($(date +%s) - touched)) -le 5 ]
done
case $name in
  frontend*)
    exec 3<>"/dev/tcp/127.0.0.1/${BATON_PORT:-8000}"
    printf 'GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
    read -r -t 3 line <&3
    [[ $line == *" 200 "* ]]
    ;;
esac
