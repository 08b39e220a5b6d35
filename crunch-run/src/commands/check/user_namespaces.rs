//! Checks user namespaces. Containers of ordinary users need them: whether the kernel allows them,
//! and which subordinate ids the user has. Root's containers get one where the file systems of
//! cache and scratch can map owners.

use std::fs;
use std::path::Path;

use preflight::{Finding, Subject};

use super::directories::existing;

const USER_NAMESPACES: Subject = Subject("user namespaces");

/// Settings of the system.
#[derive(Debug, Clone, Default)]
struct UserNamespaceSupport {
    /// For root: whether its containers get one, else why not.
    root: Option<Result<(), String>>,
    /// Maximum number of user namespaces; `None` if the kernel has none.
    most: Option<u64>,
    /// The sysctl of Debian or Ubuntu that forbids them to ordinary users.
    forbidden_by: Option<&'static str>,
    /// Whether the user has a range in both /etc/subuid and /etc/subgid.
    has_range: bool,
    has_newuidmap: bool,
}

/// `dirs`: where containers have their files.
pub fn run(dirs: &[&Path]) -> Vec<Finding> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let forbidden_by = [
        ("kernel.unprivileged_userns_clone", 0),
        ("kernel.apparmor_restrict_unprivileged_userns", 1),
    ]
    .into_iter()
    .find(|(name, value)| number(&format!("/proc/sys/{}", name.replace('.', "/"))) == Some(*value))
    .map(|(name, _)| name);
    let uid = rustix::process::geteuid();
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let name = name_of(&text("/etc/passwd"), uid.as_raw()).or_else(|| std::env::var("USER").ok());
    let has_range = |path: &str| has_range(&text(path), uid.as_raw(), name.as_deref());
    vec![evaluate(&UserNamespaceSupport {
        root: uid.is_root().then(|| {
            let dirs: Vec<&Path> = dirs.iter().map(|dir| existing(dir)).collect();
            container_engine::can_map_owners(&dirs)
        }),
        most: number("/proc/sys/user/max_user_namespaces"),
        forbidden_by,
        has_range: has_range("/etc/subuid") && has_range("/etc/subgid"),
        has_newuidmap: which::which("newuidmap").is_ok() && which::which("newgidmap").is_ok(),
    })]
}

fn name_of(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// Finds `name:first:count` by name or uid.
fn has_range(table: &str, uid: u32, name: Option<&str>) -> bool {
    table.lines().any(|line| {
        let mut fields = line.trim().split(':');
        let who = fields.next().unwrap_or_default();
        let count: u64 = fields.nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        count > 0 && (Some(who) == name || who.parse() == Ok(uid))
    })
}

fn evaluate(info: &UserNamespaceSupport) -> Finding {
    match &info.root {
        Some(Ok(())) => {
            let finding = "root's containers get users of their own (engines builtin and oci), if overlayfs takes mapped layers (Linux 5.19)";
            return USER_NAMESPACES.ok(finding);
        }
        Some(Err(reason)) => {
            let finding = format!("root's containers have the users of this node: {reason}");
            return USER_NAMESPACES.ok(finding);
        }
        None => {}
    }
    match (info.most, info.forbidden_by) {
        (None | Some(0), _) => {
            return USER_NAMESPACES.warn("the kernel allows none, so that an ordinary user has only podman's or docker's service",
                "sysctl user.max_user_namespaces=15000, in /etc/sysctl.d too",
            );
        }
        (_, Some(switch)) => {
            let value = u8::from(switch == "kernel.unprivileged_userns_clone");
            return USER_NAMESPACES.warn(
                format!("{switch} forbids them to ordinary users"),
                format!("sysctl {switch}={value}, in /etc/sysctl.d too"),
            );
        }
        (Some(_), None) => {}
    }
    if !info.has_range {
        return USER_NAMESPACES.warn("allowed, with this user as the only one: an image's other users and groups do not work",
            "give the user a range in /etc/subuid and /etc/subgid: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER",
        );
    }
    if !info.has_newuidmap {
        return USER_NAMESPACES.warn("allowed, but the ranges in /etc/subuid and /etc/subgid cannot be used without newuidmap and newgidmap",
            "install uidmap (Debian) or shadow-utils (Red Hat)",
        );
    }
    USER_NAMESPACES.ok("allowed, with a range of further users")
}

#[cfg(test)]
mod tests {
    use super::*;
    use preflight::Level;

    #[test]
    fn what_the_files_of_a_node_mean() {
        let good = UserNamespaceSupport {
            root: None,
            most: Some(15000),
            forbidden_by: None,
            has_range: true,
            has_newuidmap: true,
        };
        let with = |change: fn(&mut UserNamespaceSupport)| {
            let mut info = good.clone();
            change(&mut info);
            info
        };
        for (info, level, words) in [
            (good.clone(), Level::Ok, "further users"),
            (
                with(|f| (f.root, f.most) = (Some(Ok(())), None)),
                Level::Ok,
                "users of their own",
            ),
            (
                with(|f| f.root = Some(Err("/x cannot".to_owned()))),
                Level::Ok,
                "the users of this node: /x cannot",
            ),
            (with(|f| f.most = None), Level::Warn, "allows none"),
            (with(|f| f.most = Some(0)), Level::Warn, "allows none"),
            (
                with(|f| f.forbidden_by = Some("kernel.unprivileged_userns_clone")),
                Level::Warn,
                "forbids",
            ),
            (with(|f| f.has_range = false), Level::Warn, "the only one"),
            (with(|f| f.has_newuidmap = false), Level::Warn, "newuidmap"),
        ] {
            let finding = evaluate(&info);
            assert_eq!(finding.level, level, "{info:?}");
            assert!(finding.finding.contains(words), "{finding:?}");
        }
        let switch = with(|f| f.forbidden_by = Some("kernel.unprivileged_userns_clone"));
        assert!(evaluate(&switch).remedy.unwrap().contains("userns_clone=1"));
    }

    #[test]
    fn ranges_are_by_name_or_number() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:100::/home/ann:/bin/sh\nbroken\n";
        assert_eq!(name_of(passwd, 1000).as_deref(), Some("ann"));
        assert_eq!(name_of(passwd, 1), None);
        for (table, has) in [
            ("ann:100000:65536\n", true),
            ("bob:1:2\n1000:100000:65536\n", true),
            ("ann:100000:0\n", false),
            ("anna:100000:65536\n", false),
            ("ann\n", false),
            ("", false),
        ] {
            assert_eq!(has_range(table, 1000, Some("ann")), has, "{table}");
        }
    }
}
