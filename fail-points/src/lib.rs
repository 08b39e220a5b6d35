//! Named places where a program of the suite can be made to die with `kill -9`, for tests.
//!
//! Without the feature `enabled` a fail point is nothing. With it, [`VARIABLE`] names a directory:
//!
//! | file | written by | is |
//! |---|---|---|
//! | `NAME` | the test | a count n: the nth passing of the point `NAME` kills the process, once |
//! | `NAME.hold` | the test | while it is there, whoever comes to the point `NAME` waits |
//! | `passed` | the programs | a line for each passing: the point, the pid, the program's arguments |
//! | `killed` | the programs | the same for each passing that killed |

#[cfg(feature = "enabled")]
mod enabled;

/// Whether the fail points are there in this build.
pub const ENABLED: bool = cfg!(feature = "enabled");

/// The variable that names the directory.
pub const VARIABLE: &str = "DISPATCH_FAIL_POINTS";

/// What a program that starts another with a clean environment must hand on, besides what it hands on anyway.
pub const ENVIRONMENT: &[&str] = if ENABLED { &[VARIABLE] } else { &[] };

/// The process passes the point `name` here, unless it was told to die.
#[inline(always)]
pub fn fail_point(name: &str) {
    #[cfg(feature = "enabled")]
    enabled::pass(name);
    #[cfg(not(feature = "enabled"))]
    let _ = name;
}
