//! The environment of a command: processes, devices, kernel files, network.

use serde_json::json;

use crate::contract::engines::Engine;
use crate::contract::lab::Lab;

pub async fn a_container_sees_only_its_own_processes(lab: &Lab) {
    let ended = lab.sh("echo $$; ls -d /proc/[0-9]* | wc -l").await;
    let stdout = ended.stdout();
    assert!(stdout[0].parse::<u32>().unwrap() <= 2, "{stdout:?}");
    assert!(stdout[1].parse::<u32>().unwrap() <= 5, "{stdout:?}");
}

pub async fn dev_shm_and_tmp_are_writable(lab: &Lab) {
    let ended = lab
        .sh("for d in /dev/shm /tmp; do echo x >$d/file && cat $d/file; done; echo y >/dev/null")
        .await;
    assert_eq!(ended.stdout(), ["x", "x"]);
}

pub async fn proc_and_sys_are_safe(lab: &Lab) {
    let script = "for f in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /sys/kernel/mm/ksm/run \
                  /sys/power/state; do (echo 0 >$f) 2>/dev/null && echo \"$f is writable\"; done; \
                  mount -o remount,rw /proc/sys 2>/dev/null && echo remounted; \
                  mknod /tmp/disk b 8 0 2>/dev/null && head -c 1 /tmp/disk >/dev/null 2>&1 && echo disk; true";
    assert!(lab.sh(script).await.stdout().is_empty());
}

pub async fn the_hostname_is_its_own(lab: &Lab) {
    let ended = lab.run(&["hostname"], json!({})).await;
    let here = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    assert_ne!(ended.stdout(), [here]);
}

pub async fn no_network_without_the_api(lab: &Lab) {
    let ended = lab.sh("ls /sys/class/net; wc -l </proc/net/route").await;
    let stdout = ended.stdout();
    // An engine may leave the kernel's inactive tunnel devices; no route uses them.
    assert!(stdout.contains(&"lo"), "{stdout:?}");
    assert!(
        !stdout.iter().any(|name| name.starts_with("eth")),
        "{stdout:?}"
    );
    assert!(["0", "1"].contains(stdout.last().unwrap()), "{stdout:?}");
}

pub async fn the_node_s_network_with_the_api(lab: &Lab) {
    let more = json!({"runtime_constraints": {"vcpus": 1, "ram": 128 << 20, "API": true}});
    let script = "wc -l </proc/net/dev; echo $ARVADOS_API_HOST; grep CapEff /proc/self/status; \
                  readlink /proc/self/ns/user; test -n \"$ARVADOS_API_TOKEN\"";
    let ended = lab.sh_with(script, more).await;
    let here = std::fs::read_to_string("/proc/net/dev")
        .unwrap()
        .lines()
        .count();
    let stdout = ended.stdout();
    assert_eq!(stdout[0], here.to_string());
    assert_eq!(stdout[1], lab.world.user.endpoint().host);
    // In a user namespace of its own, no capability applies to the node.
    let ours = std::fs::read_link("/proc/self/ns/user").unwrap();
    if stdout[3] != ours.to_str().unwrap() {
        return;
    }
    // Without CAP_NET_RAW and CAP_NET_ADMIN: neither raw sockets nor changes of the network.
    let effective = stdout[2].trim_start_matches("CapEff:").trim();
    let effective = u64::from_str_radix(effective, 16).unwrap();
    let (net_admin, net_raw) = (1 << 12, 1 << 13);
    assert_eq!(effective & (net_admin | net_raw), 0, "{effective:x}");
}

/// Bits of capabilities(7): those that `container_engine::capabilities` lists, and two others.
const LISTED: u64 = 0x8004_05fb;
const NET_RAW: u64 = 1 << 13;
const SYS_PTRACE: u64 = 1 << 19;

pub async fn root_has_the_listed_capabilities_and_those_the_site_adds(lab: &Lab) {
    // Apptainer knows all or none: see docs/engines.md.
    let flags = ["--cap-add=CAP_NET_RAW", "--cap-add=sys_ptrace"];
    let rows = match lab.engine {
        Engine::Apptainer => [(&flags[..0], 0), (&flags, 0)],
        Engine::ApptainerAsNobody => return,
        _ => [
            (&flags[..0], LISTED),
            (&flags, LISTED | NET_RAW | SYS_PTRACE),
        ],
    };
    for (flags, expected) in rows {
        let script = "grep -e CapEff -e CapBnd /proc/self/status";
        let (job, child) = lab.start(&["sh", "-c", script], json!({}), flags).await;
        let ended = lab.end(job, child).await;
        let sets = ended.stdout();
        assert_eq!(sets.len(), 2, "{sets:?}");
        for set in sets {
            let (_, set) = set.split_once(":\t").unwrap();
            assert_eq!(
                u64::from_str_radix(set, 16),
                Ok(expected),
                "{flags:?} {set}"
            );
        }
    }
}
