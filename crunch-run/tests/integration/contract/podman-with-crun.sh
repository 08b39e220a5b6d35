#!/bin/bash
# podman-with-crun.sh DIR: podman's service with Debian's own OCI runtime.
set -eu
exec "$(dirname "$(realpath "$0")")/podman.sh" "$1" --runtime crun
