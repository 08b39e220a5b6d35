#!/bin/bash
# podman-as-nobody.sh DIR: the same for an ordinary user without subordinate ids.
set -eu
mkdir "$1/runtime"
chown -R nobody "$1"
here=$(dirname "$(realpath "$0")")
cd /
# vfs: the other drivers want more than one id to unpack with.
exec setpriv --reuid=65534 --regid=65534 --clear-groups env HOME="$1" XDG_RUNTIME_DIR="$1/runtime" \
  "$here/podman.sh" "$1" --storage-driver vfs
