//! `dispatch-slurm check`: checks everything that the dispatcher needs, and names a remedy for what
//! is missing.
//!
//! Input: flags and settings. Output: a report of findings.

use std::path::Path;

use dispatch_core::scheduler::test_submission::{TEST_TIMEOUT, TestResult};
use dispatch_core::service;
use dispatch_core::service::state_dir::StateDir;
use dispatch_core::service::subcommands::check::probe_job::ProbeOptions;
use dispatch_core::service::subcommands::check::{self, Finding, Report};
use rustix::fs::statfs;

use crate::flags::Flags;
use crate::query::node_class_cache::NodeClassCache;
use crate::query::node_classes::SCRATCH_REMEDY;
use crate::settings::{Settings, check_argument};
use crate::slurm::Slurm;
use crate::submit::test_only::{NO_NODE_NOW, test_arguments};

const STATE_DIR_CHECK: &str = "state directory";
/// Maximum number of lines of the owner map that are tried; each is a call of sbatch.
const MAX_OWNER_LINES: usize = 100;
/// Commands that the dispatcher runs.
const COMMANDS: [&str; 5] = ["sbatch", "squeue", "scancel", "scontrol", "sinfo"];
/// Remedies if `squeue` does not answer, or is slow.
const QUEUE_REMEDIES: check::QueueRemedies = check::QueueRemedies {
    silent: "check that slurmctld runs and accepts this machine: scontrol ping, munge -n | unmunge",
    slow: "raise --poll-interval, or check the load of slurmctld: sdiag",
};

/// File systems that other machines do not see, by the numbers in linux/magic.h.
const LOCAL_FILE_SYSTEMS: [(i64, &str); 5] = [
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x794C_7630, "overlay"),
];

/// Runs all checks; with `test` it also submits a job and cancels it.
pub async fn check(flags: &Flags, settings: &Settings, test: Option<ProbeOptions>) -> Report {
    let common = &flags.common;
    let mut findings = check::set_up(common);
    let mends = check::Remedies {
        install: "install Slurm's client commands on this machine, in PATH",
        configure: "make them work for this user in a shell first; SLURM_CONF names a slurm.conf outside the default directory",
    };
    findings.extend(check::commands(&COMMANDS, "--version", mends).await);
    let (directory_finding, home) = check::directory(STATE_DIR_CHECK, &flags.state_dir).await;
    findings.push(directory_finding);
    if test.is_none() {
        findings.extend(home.as_ref().and_then(check_file_system));
    }
    findings.push(check_partitions(settings).await);
    findings.extend(check_scratch(settings).await);
    if settings.owner_map.is_none() {
        findings.push(check_arguments(settings).await);
    }
    findings.extend(check_owner_map(flags.owner_map.as_deref(), settings).await);
    if let Some(home) = home {
        let instance_id = home.instance_id_or_placeholder();
        let slurm = Slurm::new(settings.clone(), home, instance_id, common.command_timeout);
        findings.extend(check::queue(&slurm, "squeue", QUEUE_REMEDIES, test).await);
    }
    findings.extend(check::api(service::endpoint(common), common.system_root_token()).await);
    Report::new(findings)
}

/// Asks Slurm whether it would accept a small job with the arguments of every job.
async fn check_arguments(settings: &Settings) -> Finding {
    const ARGUMENTS: &str = "arguments of jobs";
    match test_arguments(settings, &[]).await {
        TestResult::Accepted => Finding::ok(ARGUMENTS, "Slurm accepts a small job with them"),
        TestResult::Rejected(why) => rejected(
            ARGUMENTS,
            format!("Slurm would reject a small job with them: {why}"),
            "correct --account, --qos, --reservation, --constraint and --sbatch-argument; --dry-run shows where each comes from",
        ),
        TestResult::Unknown => not_tried(ARGUMENTS),
    }
}

/// Of a job that Slurm would reject. `remedy` is for its arguments.
fn rejected(what: &str, finding: String, remedy: &str) -> Finding {
    // Slurm says the same of arguments that fit no node, and while no node is up.
    let remedy = match finding.contains(NO_NODE_NOW) {
        true => {
            format!("see whether nodes are up, with sinfo, and try again; if they are: {remedy}")
        }
        false => remedy.to_owned(),
    };
    Finding::warn(what, finding, &remedy)
}

fn not_tried(what: &str) -> Finding {
    let mend = "try again when slurmctld answers: scontrol ping";
    Finding::warn(what, "not tried: Slurm does not answer", mend)
}

/// Asks Slurm whether it would accept a small job with the arguments of each line.
async fn check_owner_map(path: Option<&Path>, settings: &Settings) -> Vec<Finding> {
    let Some(map) = &settings.owner_map else {
        let fault = check::owner_map_fault(path, check_argument);
        return fault.into_iter().collect();
    };
    let lines = map.lines();
    let mut findings = Vec::new();
    for (who, arguments) in lines.iter().take(MAX_OWNER_LINES) {
        let why = match test_arguments(settings, arguments).await {
            TestResult::Accepted => continue,
            TestResult::Rejected(why) => why,
            // The others would take as long.
            TestResult::Unknown => {
                findings.push(not_tried(check::OWNER_MAP));
                break;
            }
        };
        findings.push(rejected(
            check::OWNER_MAP,
            format!("Slurm would reject the jobs of {who}: {why}"),
            "correct the line, or give the service's user the association: sacctmgr add user NAME account=ACCOUNT",
        ));
    }
    if findings.is_empty() {
        let words = match lines.len() {
            count if count > MAX_OWNER_LINES => {
                format!("Slurm accepts the first {MAX_OWNER_LINES} of {count} lines")
            }
            count => format!("Slurm accepts all {count} lines"),
        };
        findings.push(Finding::ok(check::OWNER_MAP, words));
    }
    findings
}

async fn check_partitions(settings: &Settings) -> Finding {
    let arguments = ["--noheader", "--format=%R|%a|%D|%l"];
    match settings.client("sinfo").args(arguments).run_checked().await {
        Ok(answer) => evaluate_partitions(&answer.stdout),
        Err(error) => Finding::fail(
            "partitions",
            error.to_string(),
            "check that slurmctld runs and accepts this machine: scontrol ping",
        ),
    }
}

/// Fails if jobs ask for scratch space that no node is said to have.
async fn check_scratch(settings: &Settings) -> Option<Finding> {
    let nodes = NodeClassCache::new(settings);
    nodes.refresh(settings, TEST_TIMEOUT).await;
    let words = "no node has TmpDisk, so no job that asks for scratch space can run";
    nodes
        .lack_scratch()
        .then(|| Finding::fail("scratch space", words, SCRATCH_REMEDY))
}

/// Evaluates lines of name, state, number of nodes and time limit.
fn evaluate_partitions(listing: &str) -> Finding {
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
            "scontrol update PartitionName=NAME ProbeState=UP",
        ),
        (false, true) => Finding::ok("partitions", listed(&up)),
        (false, false) => Finding::ok(
            "partitions",
            format!("{}; down: {}", listed(&up), listed(&down)),
        ),
    }
}

/// Warns if the directory is on a local file system. Only a job can show whether nodes see it.
fn check_file_system(home: &StateDir) -> Option<Finding> {
    let kind = statfs(home.path()).ok()?;
    let (_, name) = LOCAL_FILE_SYSTEMS
        .iter()
        .find(|(magic, _)| *magic == kind.f_type)?;
    Some(Finding::warn(
        STATE_DIR_CHECK,
        format!("is on {name}, which nodes mount only if this machine exports it"),
        "use a directory that all nodes mount at the same path; check --submit-test shows whether they do",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dispatch_core::service::subcommands::check::Level;

    #[test]
    fn the_remedy_of_a_rejection_follows_its_words() {
        for (why, words) in [
            ("Invalid account", "correct the line"),
            (NO_NODE_NOW, "see whether nodes are up, with sinfo"),
        ] {
            let finding = rejected(
                "line",
                format!("would be rejected: {why}"),
                "correct the line",
            );
            let remedy = finding.remedy.unwrap_or_default();
            assert!(remedy.starts_with(words), "{remedy}");
        }
    }

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
            let finding = evaluate_partitions(listing);
            assert_eq!((finding.level, finding.finding.as_str()), (level, words));
        }
    }
}
