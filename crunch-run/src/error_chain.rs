//! Formats an error with its causes as one line. Repeated causes are omitted.

/// The line for stderr.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !line.contains(&cause) {
            line.push_str(": ");
            line.push_str(&cause);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use anyhow::Context;

    use super::*;
    use crate::node::detach::DetachError;
    use crate::node::lock_file::LockError;

    #[test]
    fn each_cause_is_named_once() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        // The text of each of these errors contains its cause.
        let lock = LockError::Io {
            path: PathBuf::from("/job/lock"),
            source: denied(),
        };
        let lock = anyhow::Error::from(DetachError::Lock(lock));
        assert_eq!(
            one_line(&lock),
            "the lock file /job/lock cannot be used: permission denied"
        );
        let around = Err::<(), _>(lock).context("no run can begin").unwrap_err();
        assert_eq!(
            one_line(&around),
            "no run can begin: the lock file /job/lock cannot be used: permission denied"
        );
        // The context's text does not contain its cause.
        let plain = Err::<(), _>(denied()).context("/x cannot be used");
        assert_eq!(
            one_line(&plain.unwrap_err()),
            "/x cannot be used: permission denied"
        );
    }
}
