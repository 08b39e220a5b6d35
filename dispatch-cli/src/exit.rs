//! Exit statuses of the command. Scripts rely on them: statuses are added, never changed.

/// The exit statuses of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command succeeded.
    Ok,
    /// Something failed; the sentence on standard error says what.
    Failure,
    /// The command line is wrong; nothing was done.
    Usage,
    /// No such job, image, collection, path, file, user or token.
    NotFound,
    /// No server or token is configured, or the token may not do this.
    Denied,
    /// The server cannot be reached.
    Unreachable,
    /// `up` is already running on this state directory.
    AlreadyUp,
    /// `get` would overwrite files.
    WouldOverwrite,
    /// `run`, `wait`, `submit --wait`: the job was cancelled or is on hold, so it has no exit code.
    Cancelled,
    /// `wait --timeout`: the job did not end in time.
    TimedOut,
    /// `run`, `wait`, `submit --wait`: dispatch itself failed.
    WaitFailed,
    /// `run`, `wait`, `submit --wait`: Ctrl-C ended the wait, and the job goes on.
    Interrupted,
    /// `run`, `wait`, `submit --wait`: exit code of the command of the job.
    Job(u8),
}

impl Exit {
    /// The status as a number.
    pub fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Failure => 1,
            Exit::Usage => 2,
            Exit::NotFound => 3,
            Exit::Denied => 4,
            Exit::Unreachable => 5,
            Exit::AlreadyUp => 6,
            Exit::WouldOverwrite => 7,
            Exit::Cancelled => 123,
            Exit::TimedOut => 124,
            Exit::WaitFailed => 125,
            Exit::Interrupted => 130,
            Exit::Job(code) => code,
        }
    }

    /// This one, or `next` if this is [`Exit::Ok`].
    pub fn or(self, next: Exit) -> Self {
        match self {
            Exit::Ok => next,
            first => first,
        }
    }

    /// Exit status for the exit code of a container. Codes out of range become 255.
    pub fn of_job(code: i32) -> Self {
        match u8::try_from(code) {
            Ok(0) => Exit::Ok,
            Ok(code) => Exit::Job(code),
            Err(_) => Exit::Job(255),
        }
    }
}

/// Table of exit statuses for the help and the man page.
pub const STATUS_HELP: &str = "\
Exit status:
  0    done
  1    something failed, or a job given by its number was left alone; standard error says what and why
  2    the command line is wrong; nothing was done
  3    no such job, image, collection, path, file, user or token
  4    no server or token is configured, or the token may not do this
  5    the server cannot be reached
  6    'up': already running on this state directory
  7    'get': files are in the way and --force was not given

'run', 'wait' and 'submit --wait' end with the exit code of the job's command (128+N if signal N killed it), or:
  2    the command line is wrong; nothing was submitted
  123  the job was cancelled or is on hold, so there is no exit code
  124  --timeout is over and the job is not
  125  dispatch itself failed (any of 1, 3, 4, 5 above)
  130  Ctrl-C ended the wait; the job goes on

Environment:
  ARVADOS_API_HOST, ARVADOS_API_TOKEN and SSL_CERT_FILE name the server, as 'dispatch env' prints them. Without
  ARVADOS_API_HOST, the server of a running 'dispatch up' is used, then ~/.config/arvados/settings.conf.
  --state-dir (or DISPATCH_STATE_DIR) given explicitly names the 'dispatch up' to use whatever ARVADOS_API_HOST says.

Jobs:
  A job is a container request. Wherever ID is asked for, its number, its uuid (-xvhdp-) or its container's
  uuid (-dz642-) can be given. Numbers are kept in the request's properties (dispatch_id, dispatch_user) on
  the server, count up for each user, and are the same on every machine. Jobs of projects and of workflow
  steps have none, and with a real Arvados, jobs that other programs submitted.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_status() {
        let all = [
            Exit::Ok,
            Exit::Failure,
            Exit::Usage,
            Exit::NotFound,
            Exit::Denied,
            Exit::Unreachable,
            Exit::AlreadyUp,
            Exit::WouldOverwrite,
            Exit::Cancelled,
            Exit::TimedOut,
            Exit::WaitFailed,
            Exit::Interrupted,
        ];
        for exit in all {
            let row = format!("\n  {:<5}", exit.code());
            assert!(STATUS_HELP.contains(&row), "{exit:?}");
        }
    }

    #[test]
    fn a_jobs_exit_code_is_ours() {
        let rows = [
            (0, 0),
            (1, 1),
            (137, 137),
            (255, 255),
            (256, 255),
            (-1, 255),
        ];
        for (job, ours) in rows {
            assert_eq!(Exit::of_job(job).code(), ours, "{job}");
        }
    }
}
