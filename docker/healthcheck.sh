#!/bin/bash
# healthcheck NAME: 0 if the process is well. A front end must answer /health with 200; the others
# must have come round in their main loop within the last five seconds.
set -eu
name=$1
run_dir=${BATON_RUN_DIR:-/run/baton}
age=$(($(date +%s) - $(stat -c %Y "$run_dir/$name.alive")))
[ "$age" -le 5 ]
case $name in
  frontend*)
    exec 3<>"/dev/tcp/127.0.0.1/${BATON_PORT:-8000}"
    printf 'GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
    read -r -t 3 line <&3
    [[ $line == *" 200 "* ]]
    ;;
esac
