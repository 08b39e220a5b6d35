#!/bin/bash
# docker.sh DIR: a throwaway dockerd with everything of its own in DIR (a short path: sockets live in it), without
# systemd, bridge or firewall. It lives as long as stdin is open, then goes with its containers.
set -eu
dir=$1
echo '{}' >"$dir/daemon.json"
exec 3<&0
dockerd --config-file="$dir/daemon.json" --data-root="$dir/root" --exec-root="$dir/exec" \
  --pidfile="$dir/pid" -H "unix://$dir/sock" --exec-opt native.cgroupdriver=cgroupfs \
  --cgroup-parent="/$(basename "$dir")" --shutdown-timeout=2 \
  --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
  >"$dir/log" 2>&1 </dev/null 3<&- &
daemon=$!
(
  cat <&3 >/dev/null
  kill -TERM "$daemon"
) &
ender=$!
wait "$daemon" || true
# The number of one that was killed may be another's by now.
kill "$ender" 2>/dev/null || true
# Those of a daemon that was killed stay.
for process in /proc/[0-9]*; do
  if tr '\0' ' ' <"$process/cmdline" 2>/dev/null | grep -qF -- "containerd-shim-runc-v2 -namespace moby" &&
    tr '\0' ' ' <"$process/cmdline" 2>/dev/null | grep -qF -- "-address $dir/"; then
    kill -KILL "${process##*/}" || true
  fi
done
awk -v d="$dir/" 'index($2, d) == 1 {print $2}' /proc/mounts | sort -r | while read -r mount; do
  umount -l "$mount" || true
done
for group in /sys/fs/cgroup/*/"$(basename "$dir")" /sys/fs/cgroup/"$(basename "$dir")"; do
  if [ -d "$group" ]; then find "$group" -depth -type d -exec rmdir {} \; ; fi
done
# One that did not start leaves its log.
[ -e "$dir/root" ] || exit 1
rm -rf --one-file-system "$dir"
