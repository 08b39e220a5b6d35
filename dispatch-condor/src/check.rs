//! `dispatch-condor check`: whether everything that this dispatcher needs is there, and what to do about what is not.

mod submit_test;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use dispatch_core::check::submit_test::Test;
use dispatch_core::check::{self, Finding, Report};
use dispatch_core::command::Command;
use dispatch_core::home::Home;
use dispatch_core::needs::Needs;
use dispatch_core::program;
use dispatch_core::scheduler::Scheduler;

use crate::condor::Condor;
use crate::flags::Flags;
use crate::lines::{self, Asks};
use crate::policy::Starts;
use crate::submission::{self, Common, Item, Settings};
use submit_test::Trial;

/// What it runs that tells its version; condor_submit is tried otherwise, and condor_history is of the same package.
const COMMANDS: [&str; 3] = ["condor_q", "condor_rm", "condor_status"];
/// condor_q slower than this holds every look up.
const SLOW: Duration = Duration::from_secs(5);
const SCHEDD: &str = "see that condor_schedd runs on this machine and this user may ask it: condor_ping -type SCHEDD READ WRITE";

/// Looks at everything, and with `test` submits a job.
pub async fn check(flags: &Flags, settings: &Settings, test: Option<Test>) -> Report {
    let common = &flags.common;
    let mut findings = check::set_up(common);
    if rustix::process::geteuid().is_root() {
        let mend = "run the service, and this check, as a user of its own";
        findings.push(Finding::fail("user", "HTCondor runs no jobs of root", mend));
    }
    let mends = check::Mends {
        install: "install HTCondor's client commands on this machine, in PATH",
        configure: "have them work by hand for this user first: CONDOR_CONFIG names a configuration in another place than the usual",
    };
    findings.extend(check::commands(&COMMANDS, "-version", mends).await);
    let (place, home) = check::directory("job directory", &flags.job_dir);
    findings.push(place);
    if settings.transfer {
        findings.extend(travels(settings));
    }
    findings.push(description(settings, home.as_ref()).await);
    findings.push(slots().await);
    if let Some(home) = home {
        let label = home.shown_label();
        let directory = home.path().to_owned();
        let condor = Condor::new(settings.clone(), home, label, common.command_timeout);
        let queue = queue(&condor).await;
        let answers = queue.mend.is_none();
        findings.push(queue);
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

async fn queue(condor: &Condor) -> Finding {
    let began = Instant::now();
    let listing = condor.list().await;
    let took = began.elapsed();
    let milliseconds = took.as_millis();
    match listing {
        Err(error) => Finding::fail("condor_q", error.to_string(), SCHEDD),
        Ok(_) if took > SLOW => Finding::warn(
            "condor_q",
            format!("took {milliseconds} ms"),
            "raise --poll-interval, or look at the schedd's load: condor_status -schedd -long",
        ),
        Ok(jobs) => {
            let count = jobs.iter().filter(|job| !job.ended).count();
            Finding::ok(
                "condor_q",
                format!("answers in {milliseconds} ms, {count} jobs of this dispatcher"),
            )
        }
    }
}

/// What the pool offers, by lines of slot type, CPUs, MiB, GPUs.
async fn slots() -> Finding {
    let columns = [
        "-af",
        "SlotType",
        "TotalSlotCpus",
        "TotalSlotMemory",
        "TotalSlotGPUs",
    ];
    match Command::new("condor_status").args(columns).succeed().await {
        Ok(answer) => judge_slots(&answer.output),
        Err(error) => Finding::fail(
            "slots",
            error.to_string(),
            "see that the pool's collector answers: condor_status, condor_config_val COLLECTOR_HOST",
        ),
    }
}

fn judge_slots(listing: &str) -> Finding {
    let mut all = [0; 4];
    for line in listing.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Parts of a slot are told with the whole.
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
            "the pool has none now, so that jobs wait",
            "see what condor_status shows, and on an execution machine that condor_startd runs",
        ),
        _ => Finding::ok(
            "slots",
            format!(
                "{slots} (parts not counted), of {cpus} CPUs, {memory} MiB, {gpus} GPUs in all"
            ),
        ),
    }
}

/// The files that travel with each job.
fn travels(settings: &Settings) -> Vec<Finding> {
    let program = settings.crunch_run.first().map_or("", String::as_str);
    let certificate = settings.environment.get("SSL_CERT_FILE");
    let files = [
        (Some(program), 0o111),
        (certificate.map(String::as_str), 0o444),
    ];
    let files = files.into_iter();
    files
        .filter_map(|(path, mode)| Some((path?, mode)))
        .map(|(path, mode)| match Path::new(path).metadata() {
            Ok(file) if file.is_file() && file.permissions().mode() & mode != 0 => {
                Finding::ok("files sent", format!("{path} travels with each job"))
            }
            Ok(_) => Finding::fail(
                "files sent",
                format!("{path} is no file, or has not the mode for this"),
                "name it by --crunch-run, or SSL_CERT_FILE, as it is on this machine",
            ),
            Err(error) => Finding::fail(
                "files sent",
                format!("{path}: {error}"),
                "name it by --crunch-run, or SSL_CERT_FILE, as it is on this machine",
            ),
        })
        .collect()
}

/// Has condor_submit read a description as this site would have it, without submitting.
async fn description(settings: &Settings, home: Option<&Home>) -> Finding {
    const WHAT: &str = "submit lines";
    let mend = "correct the submit line that it names: --dry-run UUID shows all of them";
    let container = ContainerUuid::generate("check");
    let needs = Needs {
        cpus: 1,
        gpus: 1,
        max_run_time: Some(60),
        partitions: vec!["any".to_owned()],
        ..Needs::default()
    };
    // Where there is no kind of node with a GPU.
    let types = Vec::new();
    let settings = Settings {
        types,
        ..settings.clone()
    };
    let attempt = match arvados_client::TokenUuid::parse("check-gj3su-000000000000000") {
        Ok(attempt) => attempt,
        Err(error) => return Finding::fail(WHAT, error.to_string(), mend),
    };
    let described = settings.describe(
        &Common {
            label: "check",
            avoid: &[],
            asks: Asks::of(&needs),
            starts: Starts(1),
            log: Path::new("/dev/null"),
        },
        &[Item {
            container: &container,
            attempt: &attempt,
            needs: &needs,
            dir: home.map_or(Path::new("/"), Home::path),
        }],
    );
    let text = match described {
        Ok(text) => text,
        Err(error) => return Finding::fail(WHAT, error.to_string(), mend),
    };
    let command = Command::new("condor_submit").args(["-dry-run", "-", "-"]);
    match command.input(text).succeed().await {
        Err(error) => Finding::fail(WHAT, error.to_string(), mend),
        Ok(answer) => match complaint(&answer.complaint) {
            None => Finding::ok(WHAT, "condor_submit takes them"),
            Some(complaint) => Finding::warn(WHAT, complaint, mend),
        },
    }
}

/// What condor_submit warns of, but for macros of ours that no line of this site has a use for.
fn complaint(said: &str) -> Option<String> {
    let own = lines::MACROS.iter().map(|(_, name)| *name);
    let own: Vec<&str> = own.chain(submission::MACROS).collect();
    let is_own = |line: &str| {
        let named = line.split('\'').nth(1).unwrap_or_default();
        let name = named.split(' ').next().unwrap_or_default();
        line.contains("unused") && own.contains(&name)
    };
    let warnings = said.lines().filter(|line| line.contains("WARNING"));
    let warnings: Vec<&str> = warnings.filter(|line| !is_own(line)).collect();
    (!warnings.is_empty()).then(|| warnings.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dispatch_core::check::Level;

    #[test]
    fn slots_are_added_up() {
        #[rustfmt::skip]
        let rows = [
            ("Partitionable 4 8192 2\nDynamic 4 8192 2\nStatic 1 1024 undefined\n", Level::Ok,
                "2 (parts not counted), of 5 CPUs, 9216 MiB, 2 GPUs in all"),
            ("", Level::Warn, "the pool has none now, so that jobs wait"),
        ];
        for (listing, level, words) in rows {
            let finding = judge_slots(listing);
            assert_eq!((finding.level, finding.finding.as_str()), (level, words));
        }
    }

    #[test]
    fn what_condor_submit_warns_of_is_told() {
        let ours = "WARNING: the Queue variable 'JobScratch' was unused by condor_submit. Is it a typo?\n\
            WARNING: the line 'Comma = ,' was unused by condor_submit. Is it a typo?\n";
        assert_eq!(complaint(ours), None);
        let theirs = "WARNING: the line 'Rnak = Memory' was unused by condor_submit. Is it a typo?";
        assert_eq!(
            complaint(&format!("{ours}{theirs}\n")).as_deref(),
            Some(theirs)
        );
    }
}
