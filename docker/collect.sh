#!/bin/sh
# collect.sh BIN OUT: puts Baton's binaries into OUT/bin and the shared libraries that they need, but
# not the C library, into OUT/lib, so that the final image needs no packages
# but Python.
set -eu
bin=$1
out=$2
mkdir -p "$out/bin" "$out/lib"
for name in baton-frontend baton-grammar baton-memory baton-scheduler baton-worker baton-ctl baton-supervisor; do
  cp "$bin/$name" "$out/bin/"
  strip "$out/bin/$name"
  if ldd "$bin/$name" | grep 'not found'; then
    echo "collect.sh: $name lacks a library" >&2
    exit 1
  fi
  ldd "$bin/$name" | awk '$3 ~ /^\// { print $3 }'
done | sort -u | while read -r library; do
  case ${library##*/} in
    libc.so.* | libm.so.* | libpthread.so.* | librt.so.* | libdl.so.* | ld-linux*) ;;
    *) cp -L "$library" "$out/lib/" ;;
  esac
done
# Jinja2, which the front end looks for beside bin.
cp -r "$out/deps/python" "$out/python"
# libtorch's copies are in lib now; the tree that it was unpacked to holds 250 MB of headers.
rm -rf "$out/deps"
