//! The image's USER as numbers, by the image's own /etc/passwd and /etc/group.

use std::path::Path;

use pathrs::Root;

use super::image_file;
use crate::StartError;

/// The files of accounts.
pub const ACCOUNTS: [&str; 2] = ["/etc/passwd", "/etc/group"];
/// They are small; a larger one is refused.
pub const MAX_BYTES: u64 = 4 << 20;

/// `reason` is the end of the sentence.
pub fn unusable(file: &str, reason: &str) -> StartError {
    StartError::UnusableAccounts {
        file: file.to_owned(),
        reason: reason.to_owned(),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub home: String,
}

/// Reads the two files inside `rootfs`, following links only within it. Runtimes read them too, and
/// wait for ever where one is a pipe: so it is refused whoever the user is.
pub fn identity(rootfs: &Path, user: Option<&str>) -> Result<Identity, StartError> {
    let root = Root::open(rootfs).ok();
    let text = |path: &str| -> Result<String, StartError> {
        let Some(file) = root
            .as_ref()
            .and_then(|root| image_file::find_in(root, path))
        else {
            return Ok(String::new());
        };
        match image_file::read(&file, MAX_BYTES + 1) {
            Ok(None) => Err(unusable(path, "is not a regular file")),
            Ok(Some(text)) if text.len() as u64 > MAX_BYTES => Err(unusable(path, "is too large")),
            Ok(Some(text)) => Ok(String::from_utf8_lossy(&text).into_owned()),
            // One that this user may not read.
            Err(_) => Ok(String::new()),
        }
    };
    let [passwd, group] = ACCOUNTS.map(text);
    resolve(user.unwrap_or("0"), &passwd?, &group?)
}

fn resolve(user: &str, passwd: &str, group: &str) -> Result<Identity, StartError> {
    let (user, group_wanted) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|g| !g.is_empty())),
        None => (user, None),
    };
    let user = if user.is_empty() { "0" } else { user };
    // The kernel takes the last number for none.
    let number: Option<u32> = user.parse().ok().filter(|number| *number != u32::MAX);

    // name:x:uid:gid:comment:home:shell
    let account = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| {
            fields.len() >= 4
                && match number {
                    Some(number) => fields[2].parse() == Ok(number),
                    None => fields[0] == user,
                }
        });
    let (uid, own_gid, home, name) = match (&account, number) {
        (Some(fields), _) => (
            fields[2].parse().unwrap_or(0),
            fields[3].parse().unwrap_or(0),
            fields
                .get(5)
                .copied()
                .filter(|h| !h.is_empty())
                .unwrap_or("/"),
            fields[0],
        ),
        // A number needs no account.
        (None, Some(0)) => (0, 0, "/root", "root"),
        (None, Some(number)) => (number, 0, "/", ""),
        (None, None) => {
            return Err(StartError::UnknownUser {
                user: user.to_owned(),
            });
        }
    };

    // name:x:gid:member,member
    let all_groups = || {
        group
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
    };
    let (gid, groups) = match group_wanted {
        Some(wanted) => {
            let gid = all_groups()
                .find(|f| f.len() >= 3 && f[0] == wanted)
                .and_then(|f| f[2].parse().ok())
                .or_else(|| wanted.parse().ok())
                .ok_or_else(|| StartError::UnknownGroup {
                    group: wanted.to_owned(),
                })?;
            (gid, vec![gid])
        }
        None => {
            let mut groups: Vec<u32> = all_groups()
                .filter(|f| f.len() >= 4 && !name.is_empty() && f[3].split(',').any(|m| m == name))
                .filter_map(|f| f[2].parse().ok())
                .collect();
            // Added as a supplementary group too: otherwise a setgid program could drop it.
            groups.push(own_gid);
            groups.sort_unstable();
            groups.dedup();
            (own_gid, groups)
        }
    };
    Ok(Identity {
        uid,
        gid,
        groups,
        home: home.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_by_name_and_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:100::/home/ann:/bin/sh\nbroken\n";
        let group = "root:x:0:\nusers:x:100:ann\nwheel:x:10:bob,ann\n";
        let id = |uid, gid, groups: &[u32], home: &str| {
            Ok(Identity {
                uid,
                gid,
                groups: groups.to_vec(),
                home: home.to_owned(),
            })
        };
        let cases = [
            ("", id(0, 0, &[0], "/root")),
            ("0", id(0, 0, &[0], "/root")),
            ("ann", id(1000, 100, &[10, 100], "/home/ann")),
            ("1000", id(1000, 100, &[10, 100], "/home/ann")),
            ("ann:root", id(1000, 0, &[0], "/home/ann")),
            ("ann:7", id(1000, 7, &[7], "/home/ann")),
            ("4242", id(4242, 0, &[0], "/")),
            ("4242:wheel", id(4242, 10, &[10], "/")),
            ("eve", Err(StartError::UnknownUser { user: "eve".into() })),
            (
                "4294967295",
                Err(StartError::UnknownUser {
                    user: "4294967295".into(),
                }),
            ),
            (
                "ann:nope",
                Err(StartError::UnknownGroup {
                    group: "nope".into(),
                }),
            ),
        ];
        for (user, expected) in cases {
            assert_eq!(resolve(user, passwd, group), expected, "{user}");
        }
        assert_eq!(resolve("0", "", ""), id(0, 0, &[0], "/root"));
    }
}
