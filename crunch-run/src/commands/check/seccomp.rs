//! Checks the profile of system calls that a flag names.

use std::path::Path;

use container_engine::Seccomp;
use preflight::{Finding, Subject};

use crate::flags::read_seccomp;

const SECCOMP: Subject = Subject("seccomp");

/// No finding without the flag.
pub fn run(flag: Option<&Path>) -> Vec<Finding> {
    let finding = match read_seccomp(flag) {
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
    use preflight::Level;

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
            (Path::new("off"), Level::Warn),
            (&good, Level::Ok),
            (&bad, Level::Fail),
            (Path::new("/no/such/file"), Level::Fail),
        ] {
            assert_eq!(run(Some(flag))[0].level, level, "{}", flag.display());
        }
        assert!(run(None).is_empty());
    }
}
