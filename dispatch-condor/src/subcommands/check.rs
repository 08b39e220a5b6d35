//! `dispatch-condor check`: findings about commands, directories, submit lines, slots and the
//! queue, each with a remedy.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::scheduler::command::Command;
use dispatch_core::service;
use dispatch_core::service::state_dir::StateDir;
use dispatch_core::service::subcommands::check::probe_job::ProbeOptions;
use dispatch_core::service::subcommands::check::{self, Finding, Report};

use crate::condor::Condor;
use crate::flags::{Flags, check_line};
use crate::submit::description::{Item, Settings};
use crate::submit::macros;

/// Commands that are run with `-version`. condor_submit is tried by a dry run; condor_history is in
/// the same package.
const VERSION_COMMANDS: [&str; 3] = ["condor_q", "condor_rm", "condor_status"];
/// Remedies if `condor_q` does not answer, or is slow.
const QUEUE_REMEDIES: check::QueueRemedies = check::QueueRemedies {
    silent: "see that condor_schedd runs on this machine and this user may ask it: condor_ping -type SCHEDD READ WRITE",
    slow: "raise --poll-interval, or look at the schedd's load: condor_status -schedd -long",
};

/// Runs all checks, and with `test` submits a probe job.
pub async fn check(flags: &Flags, settings: &Settings, test: Option<ProbeOptions>) -> Report {
    let common = &flags.common;
    let mut findings = check::set_up(common);
    if rustix::process::geteuid().is_root() {
        let mend = "run the service, and this check, as a user of its own";
        findings.push(Finding::fail("user", "HTCondor runs no jobs of root", mend));
    }
    let mends = check::Remedies {
        install: "install HTCondor's client commands on this machine, in PATH",
        configure: "have them work by hand for this user first: CONDOR_CONFIG names a configuration in another place than the usual",
    };
    findings.extend(check::commands(&VERSION_COMMANDS, "-version", mends).await);
    let (place, home) = check::directory("state directory", &flags.state_dir).await;
    findings.push(place);
    if settings.transfer_crunch_run {
        findings.extend(check_sent_files(settings));
    }
    findings.push(check_description(settings, home.as_ref()).await);
    findings.push(check_slots().await);
    if let Some(home) = home {
        let label = home.instance_id_or_placeholder();
        let condor = Condor::new(settings.clone(), home, label, common.command_timeout);
        findings.extend(check::queue(&condor, "condor_q", QUEUE_REMEDIES, test).await);
    }
    findings.extend(check::owner_map_fault(
        flags.owner_map.as_deref(),
        check_line,
    ));
    findings.extend(check::api(service::endpoint(common), common.system_root_token()).await);
    Report::new(findings)
}

/// Sums up the slots of the pool.
async fn check_slots() -> Finding {
    let columns = [
        "-af",
        "SlotType",
        "TotalSlotCpus",
        "TotalSlotMemory",
        "TotalSlotGPUs",
    ];
    match Command::new("condor_status")
        .args(columns)
        .run_checked()
        .await
    {
        Ok(answer) => summarize_slots(&answer.stdout),
        Err(error) => Finding::fail(
            "slots",
            error.to_string(),
            "see that the pool's collector answers: condor_status, condor_config_val COLLECTOR_HOST",
        ),
    }
}

/// The finding about lines of slot type, CPUs, MiB and GPUs.
fn summarize_slots(listing: &str) -> Finding {
    let mut all = [0; 4];
    for line in listing.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // A partitionable slot already counts its dynamic parts.
        if fields.first() == Some(&"Dynamic") || fields.len() != 4 {
            continue;
        }
        let number = |field: &str| field.parse::<u64>().unwrap_or(0);
        let slot = [1, number(fields[1]), number(fields[2]), number(fields[3])];
        for (sum, part) in all.iter_mut().zip(slot) {
            *sum += part;
        }
    }
    let [slots, cpus, memory, gpus] = all;
    match slots {
        0 => Finding::warn(
            "slots",
            "the pool has no slots now, so jobs wait",
            "see what condor_status shows, and on an execution machine that condor_startd runs",
        ),
        _ => Finding::ok(
            "slots",
            format!(
                "{slots} (dynamic slots not counted), with {cpus} CPUs, {memory} MiB, {gpus} GPUs in total"
            ),
        ),
    }
}

/// Checks the files that are transferred with each job.
fn check_sent_files(settings: &Settings) -> Vec<Finding> {
    let program = settings.crunch_run.first().map_or("", String::as_str);
    let certificate = settings.environment.get("SSL_CERT_FILE");
    let files = [
        (Some(program), 0o111),
        (certificate.map(String::as_str), 0o444),
    ];
    let files = files.into_iter();
    files
        .filter_map(|(path, mode)| Some((path?, mode)))
        .map(|(path, mode)| {
            let fault = match Path::new(path).metadata() {
                Ok(file) if file.is_file() && file.permissions().mode() & mode != 0 => {
                    return Finding::ok(
                        "files sent",
                        format!("{path} is transferred with each job"),
                    );
                }
                Ok(_) => format!("{path} is not a file, or lacks the permission bits for this"),
                Err(error) => format!("{path}: {error}"),
            };
            let mend = "set --crunch-run or SSL_CERT_FILE to the path of the file on this machine";
            Finding::fail("files sent", fault, mend)
        })
        .collect()
}

/// Lets condor_submit read a description with the lines of this site, without submitting it.
async fn check_description(settings: &Settings, home: Option<&StateDir>) -> Finding {
    const CHECK_NAME: &str = "submit lines";
    let mend = "correct the submit line that it names: --dry-run UUID shows all of them";
    let container = ContainerUuid::generate("check");
    let needs = ResourceRequest {
        cpus: 1,
        gpus: 1,
        max_run_time: Some(60),
        partitions: vec!["any".to_owned()],
        ..ResourceRequest::default()
    };
    let settings = Settings {
        // No instance type need have a GPU for this check.
        instance_types: Vec::new(),
        owner_map: None,
        ..settings.clone()
    };
    let attempt = TokenUuid::generate("check");
    let item = Item {
        container: &container,
        attempt: &attempt,
        needs: &needs,
        owner: None,
        dir: home.map_or(Path::new("/"), StateDir::path),
    };
    let described = settings.describe_trial("check", Path::new("/dev/null"), item, 1);
    let text = match described {
        Ok(text) => text,
        Err(error) => return Finding::fail(CHECK_NAME, error.to_string(), mend),
    };
    let command = Command::new("condor_submit").args(["-dry-run", "-", "-"]);
    match command.input(text).run_checked().await {
        Err(error) => Finding::fail(CHECK_NAME, error.to_string(), mend),
        Ok(answer) => match unexpected_warnings(&answer.stderr) {
            None => Finding::ok(CHECK_NAME, "condor_submit accepts them"),
            Some(complaint) => Finding::warn(CHECK_NAME, complaint, mend),
        },
    }
}

/// The warnings of condor_submit, except those about macros of this program that no line of this
/// site uses.
fn unexpected_warnings(output: &str) -> Option<String> {
    let warnings = output.lines().filter(|line| line.contains("WARNING"));
    let warnings: Vec<&str> = warnings
        .filter(|line| !macros::is_unused_own(line))
        .collect();
    (!warnings.is_empty()).then(|| warnings.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dispatch_core::service::subcommands::check::Level;

    #[test]
    fn slots_are_added_up() {
        #[rustfmt::skip]
        let rows = [
            ("Partitionable 4 8192 2\nDynamic 4 8192 2\nStatic 1 1024 undefined\n", Level::Ok,
                "2 (dynamic slots not counted), with 5 CPUs, 9216 MiB, 2 GPUs in total"),
            ("", Level::Warn, "the pool has no slots now, so jobs wait"),
        ];
        for (listing, level, words) in rows {
            let finding = summarize_slots(listing);
            assert_eq!((finding.level, finding.finding.as_str()), (level, words));
        }
    }

    #[test]
    fn what_condor_submit_warns_of_is_told() {
        let ours = "WARNING: the Queue variable 'JobScratch' was unused by condor_submit. Is it a typo?\n\
            WARNING: the line 'Comma = ,' was unused by condor_submit. Is it a typo?\n";
        assert_eq!(unexpected_warnings(ours), None);
        let theirs = "WARNING: the line 'Rnak = Memory' was unused by condor_submit. Is it a typo?";
        assert_eq!(
            unexpected_warnings(&format!("{ours}{theirs}\n")).as_deref(),
            Some(theirs)
        );
    }
}
