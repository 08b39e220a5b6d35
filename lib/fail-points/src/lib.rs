//! Fail points: named places in a program where a test can kill it with SIGKILL or let it wait.
//!
//! Without the feature `enabled`, a fail point does nothing. With it, [`VARIABLE`] names a
//! directory with these files:
//!
//! | file | written by | is |
//! |---|---|---|
//! | `NAME` | the test | n: the process that is the nth to reach `NAME` is killed there, once |
//! | `NAME.hold` | the test | a process that reaches `NAME` waits while this file exists |
//! | `passed` | the programs | a line per point reached: the point, the pid, the arguments |
//! | `killed` | the programs | the same for each kill |

#[cfg(feature = "enabled")]
mod enabled;

/// Whether fail points are enabled in this build.
pub const ENABLED: bool = cfg!(feature = "enabled");

/// The variable that names the directory.
pub const VARIABLE: &str = "DISPATCH_FAIL_POINTS";

/// Variables that a program must pass on when it starts another with a clean environment.
pub const ENVIRONMENT: &[&str] = if ENABLED { &[VARIABLE] } else { &[] };

/// A fail point: the process continues here, unless a test kills it.
#[inline(always)]
pub fn fail_point(name: &str) {
    #[cfg(feature = "enabled")]
    enabled::reach(name, VARIABLE);
    #[cfg(not(feature = "enabled"))]
    let _ = name;
}
