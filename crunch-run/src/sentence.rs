//! What went wrong as one sentence, with its causes; a cause that was named already is not named again.

/// For stderr.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut said = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !said.contains(&cause) {
            said.push_str(": ");
            said.push_str(&cause);
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use anyhow::Context;

    use super::*;
    use crate::detach::DetachError;
    use crate::lock_file::LockError;

    #[test]
    fn each_cause_is_named_once() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        // Its own text has its cause, as has the one around it.
        let lock = LockError::Io {
            path: PathBuf::from("/job/lock"),
            source: denied(),
        };
        let lock = anyhow::Error::from(DetachError::Lock(lock));
        assert_eq!(
            sentence(&lock),
            "the lock file /job/lock cannot be used: permission denied"
        );
        let around = Err::<(), _>(lock).context("no run can begin").unwrap_err();
        assert_eq!(
            sentence(&around),
            "no run can begin: the lock file /job/lock cannot be used: permission denied"
        );
        // A context knows nothing of its cause.
        let plain = Err::<(), _>(denied()).context("/x cannot be used");
        assert_eq!(
            sentence(&plain.unwrap_err()),
            "/x cannot be used: permission denied"
        );
    }
}
