//! The program below another one, such as `unshare`.

use std::process::Stdio;

use tokio::process::Command;

/// The same program, started by another one: `wrapper` runs the arguments that come after its own.
pub fn started_by(wrapper: &[&str], program: &Command) -> Command {
    let program = program.as_std();
    let variables = program.get_envs();
    let mut outer = Command::new(wrapper[0]);
    outer
        .args(&wrapper[1..])
        .arg(program.get_program())
        .args(program.get_args())
        .env_clear()
        .envs(variables.filter_map(|(name, value)| Some((name, value?))))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    outer
}
