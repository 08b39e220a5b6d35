#!/bin/bash
# podman.sh DIR [OPTION…]: podman's service with everything of its own in DIR (a short path: sockets live in it).
# It lives as long as stdin is open, then goes with its containers.
set -eu
dir=$1
shift
# runc: Debian's crun does not know hybrid control groups.
options=(--root "$dir/root" --runroot "$dir/run" --tmpdir "$dir/tmp" --runtime runc
  --cgroup-manager cgroupfs --events-backend file "$@")
exec 3<&0
# An ordinary user's has a second process, in a user namespace: the whole group is ended.
setsid podman "${options[@]}" system service --time=0 "unix://$dir/sock" >"$dir/log" 2>&1 </dev/null 3<&- &
service=$!
(
  cat <&3 >/dev/null
  kill -TERM -- "-$service"
) &
ender=$!
wait "$service" || true
# The number of one that was killed may be another's by now.
kill "$ender" 2>/dev/null || true
for _ in {1..50}; do
  kill -0 -- "-$service" 2>/dev/null || break
  sleep 0.1
done
kill -KILL -- "-$service" 2>/dev/null || true
podman "${options[@]}" rm --all --force --time 0 >>"$dir/log" 2>&1 || true
awk -v d="$dir/" 'index($2, d) == 1 {print $2}' /proc/mounts | sort -r | while read -r mount; do
  umount -l "$mount" || true
done
# What keeps the user namespace of an ordinary user.
for pause in "$dir/tmp/pause.pid" "$dir/runtime/libpod/tmp/pause.pid"; do
  if [ -s "$pause" ]; then kill -KILL "$(cat "$pause")" 2>/dev/null || true; fi
done
# One that did not start leaves its log.
[ -e "$dir/root" ] || exit 1
rm -rf --one-file-system "$dir"
