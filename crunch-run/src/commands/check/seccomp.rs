//! Checks the profile of system calls that a flag names.

use container_engine::{Confinement, ProfileError, Seccomp};
use preflight::{Finding, Subject};

const SECCOMP: Subject = Subject("seccomp");

/// No finding without the flag.
pub fn run(confinement: Result<Confinement, ProfileError>) -> Vec<Finding> {
    let finding = match confinement.map(|confinement| confinement.seccomp) {
        Ok(Seccomp::Default) => return Vec::new(),
        Ok(Seccomp::Off) => SECCOMP.warn(
            "containers may use all system calls (--seccomp=off)",
            "remove the flag, or give a profile that allows what the containers need",
        ),
        Ok(Seccomp::Profile(profile)) => SECCOMP.ok(format!(
            "the profile {} can be used",
            profile.path.display()
        )),
        Err(error) => SECCOMP.fail(
            error.to_string(),
            "correct the profile, or remove --seccomp",
        ),
    };
    vec![finding]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::NodeFlags;
    use clap::Parser;
    use preflight::Level;

    #[derive(Parser)]
    struct Node {
        #[command(flatten)]
        flags: NodeFlags,
    }

    #[test]
    fn a_bad_profile_fails_and_none_is_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let good = file("good", r#"{"defaultAction": "SCMP_ACT_ALLOW"}"#);
        let bad = file("bad", r#"{"defaultAction": "SCMP_ACT_ALLOW", "more": 1}"#);
        for (flag, level) in [
            ("off", Level::Warn),
            (good.to_str().unwrap(), Level::Ok),
            (bad.to_str().unwrap(), Level::Fail),
            ("/no/such/file", Level::Fail),
        ] {
            let node = Node::parse_from(["crunch-run", "--seccomp", flag]).flags;
            assert_eq!(run(node.confinement())[0].level, level, "{flag}");
        }
        let node = Node::parse_from(["crunch-run"]).flags;
        assert!(run(node.confinement()).is_empty());
    }
}
