//! `dispatch-slurm check`: whether everything that this dispatcher needs is there, and what to do about what is not.

mod submit_test;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use dispatch_core::check::{Finding, Report};
use dispatch_core::command::Command;
use dispatch_core::home::Home;
use dispatch_core::program;
use dispatch_core::scheduler::Scheduler;
use rustix::fs::statfs;

use crate::flags::Flags;
use crate::settings::Settings;
use crate::slurm::Slurm;

/// What it runs.
const COMMANDS: [&str; 5] = ["sbatch", "squeue", "scancel", "scontrol", "sinfo"];
/// squeue slower than this holds every look up.
const SLOW: Duration = Duration::from_secs(5);
/// File systems of one machine, by the numbers in linux/magic.h.
const LOCAL: [(i64, &str); 5] = [
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x794C_7630, "overlay"),
];

/// Looks at everything, and with `test` submits a job that is cancelled again; it may wait so long for its start.
pub async fn check(flags: &Flags, settings: Settings, test: Option<Duration>) -> Report {
    let mut findings = Vec::new();
    let config = flags.common.config.iter();
    for warning in config.flat_map(|config| &config.warnings) {
        let mend = "correct it in the configuration file, or take it out";
        findings.push(Finding::warn("configuration", warning, mend));
    }
    if rustix::process::geteuid().is_root() {
        let mend = "run the service as a user of its own, and this check too";
        findings.push(Finding::warn(
            "user",
            "this is root; any user who may submit jobs will do",
            mend,
        ));
    }
    findings.extend(commands().await);
    let (place, home) = shared_directory(&flags.shared_dir, test.is_some());
    findings.extend(place);
    findings.push(partitions(&settings).await);
    if let Some(home) = home {
        let label = home.known_label().unwrap_or_default();
        let directory = home.path().to_owned();
        let slurm = Slurm::new(settings.clone(), home, label, flags.common.command_timeout);
        let squeue = squeue(&slurm).await;
        let answers = squeue.mend.is_none();
        findings.push(squeue);
        if let Some(patience) = test.filter(|_| answers) {
            findings.push(submit_test::run(&settings, &directory, patience).await);
        }
    }
    findings.extend(dispatch_core::check::api(program::endpoint(&flags.common)).await);
    Report::new(findings)
}

async fn commands() -> Vec<Finding> {
    let mut versions = Vec::new();
    let mut findings = Vec::new();
    for name in COMMANDS {
        match Command::new(name).args(["--version"]).succeed().await {
            Ok(answer) => versions.push((name, answer.output.trim().to_owned())),
            Err(error) => {
                let mend = "install Slurm's client commands on this machine, in PATH";
                findings.push(Finding::fail("commands", format!("{name}: {error}"), mend));
            }
        }
    }
    let Some((_, version)) = versions.first() else {
        return findings;
    };
    match versions.iter().find(|(_, other)| other != version) {
        None => {
            let names: Vec<&str> = versions.iter().map(|(name, _)| *name).collect();
            findings.push(Finding::ok(
                "commands",
                format!("{} of {version}", names.join(", ")),
            ));
        }
        Some((name, other)) => findings.push(Finding::warn(
            "commands",
            format!("{} is of {version}, {name} of {other}", versions[0].0),
            "let PATH name one Slurm's commands first",
        )),
    }
    findings
}

async fn squeue(slurm: &Slurm) -> Finding {
    let began = Instant::now();
    let listing = slurm.list().await;
    let took = began.elapsed();
    let milliseconds = took.as_millis();
    match listing {
        Err(error) => Finding::fail(
            "squeue",
            error.to_string(),
            "see that slurmctld runs and this machine may ask it: scontrol ping, munge -n | unmunge",
        ),
        Ok(_) if took > SLOW => Finding::warn(
            "squeue",
            format!("took {milliseconds} ms"),
            "raise --poll-interval, or look at slurmctld's load: sdiag",
        ),
        Ok(jobs) => {
            let count = jobs.iter().filter(|job| !job.ended).count();
            Finding::ok(
                "squeue",
                format!("answers in {milliseconds} ms, {count} jobs of this dispatcher"),
            )
        }
    }
}

async fn partitions(settings: &Settings) -> Finding {
    let arguments = ["--noheader", "--format=%R|%a|%D|%l"];
    match settings.client("sinfo").args(arguments).succeed().await {
        Ok(answer) => judge_partitions(&answer.output),
        Err(error) => Finding::fail(
            "partitions",
            error.to_string(),
            "see that slurmctld runs and this machine may ask it: scontrol ping",
        ),
    }
}

/// Lines of name, up or down, nodes, time limit.
fn judge_partitions(listing: &str) -> Finding {
    let rows = listing.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        <[&str; 4]>::try_from(fields).ok()
    });
    let (up, down): (Vec<_>, Vec<_>) = rows.partition(|row| row[1] == "up");
    let listed = |rows: &[[&str; 4]]| {
        let one = |[name, _, nodes, limit]: &[&str; 4]| match *limit {
            "infinite" => format!("{name} ({nodes} nodes)"),
            limit => format!("{name} ({nodes} nodes, at most {limit})"),
        };
        rows.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    match (up.is_empty(), down.is_empty()) {
        (true, true) => Finding::fail("partitions", "there are none", "define one in slurm.conf"),
        (true, false) => Finding::fail(
            "partitions",
            format!("none is up; down: {}", listed(&down)),
            "scontrol update PartitionName=NAME State=UP",
        ),
        (false, true) => Finding::ok("partitions", listed(&up)),
        (false, false) => Finding::ok(
            "partitions",
            format!("{}; down: {}", listed(&up), listed(&down)),
        ),
    }
}

/// The directory, made if need be as the service makes it. Whether nodes see it, only a job can tell.
fn shared_directory(path: &Path, tested: bool) -> (Vec<Finding>, Option<Home>) {
    let what = "shared directory";
    let failed = |error: &dyn std::error::Error, mend: &str| {
        (vec![Finding::fail(what, error.to_string(), mend)], None)
    };
    let own = "make it for the service's user alone: install -d -m 700 -o USER DIR";
    // It may be the first time; a service that runs holds it.
    if !path.exists()
        && let Err(error) = Home::take(path)
    {
        return failed(&error, own);
    }
    let home = match Home::visit(path) {
        Ok(home) => home,
        Err(error) => return failed(&error, own),
    };
    let trial = home.path().join(".check");
    if let Err(error) = fs::write(&trial, "").and_then(|()| fs::remove_file(&trial)) {
        return failed(&error, own);
    }
    let shown = home.path().display();
    let mut findings = Vec::new();
    let mode = home
        .path()
        .metadata()
        .map(|m| m.permissions().mode() & 0o777);
    match mode {
        Ok(mode) if mode & 0o077 != 0 => findings.push(Finding::warn(
            what,
            format!(
                "{shown} is open to others (mode {mode:o}); each job's own directory in it is not"
            ),
            format!("chmod 700 {shown}"),
        )),
        _ => findings.push(Finding::ok(what, format!("{shown} can be written to"))),
    }
    let kind = statfs(home.path()).ok();
    let local = kind.and_then(|kind| LOCAL.iter().find(|(magic, _)| *magic == kind.f_type));
    if let Some((_, name)) = local.filter(|_| !tested) {
        findings.push(Finding::warn(
            what,
            format!("is on {name}: nodes see it only if this machine exports it"),
            "take one that all nodes see at the same place; check --submit-test shows whether they do",
        ));
    }
    (findings, Some(home))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dispatch_core::check::Level;

    #[test]
    fn partitions_are_told_with_their_limits() {
        #[rustfmt::skip]
        let rows = [
            ("main|up|4|infinite\nshort|up|2|1:00:00\n", Level::Ok, "main (4 nodes), short (2 nodes, at most 1:00:00)"),
            ("CLUSTER: east\nmain|up|4|infinite\nold|down|1|infinite\n", Level::Ok, "main (4 nodes); down: old (1 nodes)"),
            ("main|down|4|infinite\n", Level::Fail, "none is up; down: main (4 nodes)"),
            ("", Level::Fail, "there are none"),
        ];
        for (listing, level, words) in rows {
            let finding = judge_partitions(listing);
            assert_eq!((finding.level, finding.finding.as_str()), (level, words));
        }
    }

    #[test]
    fn a_directory_is_for_its_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shared");
        let (findings, home) = shared_directory(&path, true);
        assert!(home.is_some());
        assert_eq!(findings[0].level, Level::Ok, "{findings:?}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let (findings, _) = shared_directory(&path, true);
        assert!(findings[0].finding.contains("mode 755"), "{findings:?}");
        let (findings, home) = shared_directory(Path::new("/proc/none"), true);
        assert!(home.is_none() && findings[0].level == Level::Fail);
    }
}
