//! `dispatch-slurm check`: whether everything that this dispatcher needs is there, and what to do about what is not.

mod submit_test;

use std::time::{Duration, Instant};

use dispatch_core::check::submit_test::Test;
use dispatch_core::check::{self, Finding, Report};
use dispatch_core::home::Home;
use dispatch_core::program;
use dispatch_core::scheduler::Scheduler;
use rustix::fs::statfs;

use crate::flags::Flags;
use crate::settings::Settings;
use crate::slurm::Slurm;
use submit_test::Trial;

const SHARED: &str = "shared directory";
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

/// Looks at everything, and with `test` submits a job that is cancelled again.
pub async fn check(flags: &Flags, settings: &Settings, test: Option<Test>) -> Report {
    let common = &flags.common;
    let mut findings = check::set_up(common);
    let mends = check::Mends {
        install: "install Slurm's client commands on this machine, in PATH",
        configure: "have them work by hand for this user first: SLURM_CONF names a slurm.conf in another place than the usual",
    };
    findings.extend(check::commands(&COMMANDS, "--version", mends).await);
    let (place, home) = check::directory(SHARED, &flags.shared_dir);
    findings.push(place);
    if test.is_none() {
        findings.extend(home.as_ref().and_then(local));
    }
    findings.push(partitions(settings).await);
    if let Some(home) = home {
        let label = home.shown_label();
        let directory = home.path().to_owned();
        let slurm = Slurm::new(settings.clone(), home, label, common.command_timeout);
        let squeue = squeue(&slurm).await;
        let answers = squeue.mend.is_none();
        findings.push(squeue);
        if let Some(test) = test.filter(|_| answers) {
            let trial = Trial {
                settings,
                node: test.node.as_deref(),
            };
            findings.extend(check::submit_test::run(&trial, &directory, test.patience).await);
        }
    }
    findings.extend(check::api(program::endpoint(common)).await);
    Report::new(findings)
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

/// Whether nodes see the directory, only a job can tell; that it is on a file system of one machine can be seen.
fn local(home: &Home) -> Option<Finding> {
    let kind = statfs(home.path()).ok()?;
    let (_, name) = LOCAL.iter().find(|(magic, _)| *magic == kind.f_type)?;
    Some(Finding::warn(
        SHARED,
        format!("is on {name}: nodes see it only if this machine exports it"),
        "take one that all nodes see at the same place; check --submit-test shows whether they do",
    ))
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
}
