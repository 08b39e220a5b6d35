//! Attempts of a container to get out, as a table in `docs/engines.md`. `UPDATE_DOCS=1` writes the
//! table anew.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use serde_json::json;

use crate::contract::engines::Engine;
use crate::contract::lab::{Ended, Lab};
use crate::engine_lab::{archive, busybox_layer};
use crate::run_lab::finish;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/contract");
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/engines.md");
const BEGIN: &str = "<!-- table of escapes: begin -->\n";
const END: &str = "<!-- table of escapes: end -->\n";
const COLUMNS: [&str; 10] = [
    "builtin",
    "crun",
    "runc",
    "docker",
    "podman",
    "apptainer",
    "crun, user",
    "runc, user",
    "podman, user",
    "apptainer, user",
];

/// One attempt and what came of it.
struct Attempt {
    name: String,
    tries: String,
    is_done: bool,
    reason: String,
}

pub async fn only_documented_attempts_at_an_escape_succeed(lab: &Lab) {
    let image = image_of_attempts(lab).await;
    let ended = lab
        .run(&["/bin/escapes"], json!({"container_image": image}))
        .await;
    compare(lab, &ended);
}

/// An image with the program of the attempts, which is /bin/escapes.
pub async fn image_of_attempts(lab: &Lab) -> String {
    let program = compiled("escapes", &["-static", "-O1"]);
    image(lab, &[("bin/escapes", program)]).await
}

/// Compares what that program printed with the document.
pub fn compare(lab: &Lab, ended: &Ended) {
    let attempts: Vec<Attempt> = ended.stdout().into_iter().map(attempt).collect();
    let (needs, escapes): (Vec<_>, Vec<_>) = attempts
        .into_iter()
        .partition(|attempt| attempt.name.starts_with('+'));
    assert!(escapes.len() >= 40 && !needs.is_empty());
    for attempt in &escapes {
        let (name, reason) = (&attempt.name, &attempt.reason);
        println!("{name}: {} {reason}", attempt.is_done);
    }
    if !lab.engine.is_a_service() {
        for need in &needs {
            assert!(need.is_done, "{}: {}", need.name, need.reason);
        }
    }
    compare_with_document(column(lab.engine), &escapes);
}

/// A profile of the site replaces ours, and `off` installs none.
pub async fn a_site_s_profile_and_none(lab: &Lab) {
    // Readable for the user of crunch-run, and for the service.
    let profile = lab.world.dir().join("profile.json");
    let text = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}],
    });
    fs::write(&profile, text.to_string()).unwrap();
    let file = format!("--seccomp={}", profile.display());
    // Apptainer has one answer for everything that is denied.
    let denied = match lab.engine {
        Engine::Apptainer | Engine::ApptainerAsNobody => "Operation not permitted",
        _ => "No space left on device",
    };
    let script = "mkdir /tmp/a 2>&1; grep -w Seccomp: /proc/self/status; true";
    for (flag, expected) in [(file.as_str(), denied), ("--seccomp=off", "Seccomp:\t0")] {
        let (job, child) = lab.start(&["sh", "-c", script], json!({}), &[flag]).await;
        let ended = lab.end(job, child).await;
        let stdout = ended.stdout();
        assert!(
            stdout.iter().any(|line| line.contains(expected)),
            "{flag}: {stdout:?}"
        );
    }
}

fn attempt(line: &str) -> Attempt {
    let fields: Vec<&str> = line.split('\t').collect();
    let [name, tries, is_done, reason] = fields[..] else {
        panic!("{line}");
    };
    Attempt {
        name: name.to_owned(),
        tries: tries.to_owned(),
        is_done: is_done == "yes",
        reason: reason.to_owned(),
    }
}

/// A command that is the program which started the container, by the link that the kernel offers.
/// The image's loader runs it (CVE-2019-5736). The node's file stays as it is.
pub async fn a_container_cannot_change_the_program_that_started_it(lab: &Lab) {
    let program = Path::new(env!("CARGO_BIN_EXE_crunch-run"));
    let facts = || {
        let found = fs::metadata(program).unwrap();
        (found.mode(), found.uid(), found.size(), found.mtime_nsec())
    };
    let before = facts();
    let options = ["-static-pie", "-nostdlib", "-fno-stack-protector", "-O1"];
    let loader = compiled("loader", &options);
    let script = b"#!/proc/self/exe\n".to_vec();
    let files = [
        ("lib64/ld-linux-x86-64.so.2", loader),
        ("bin/script", script),
    ];
    let image = image(lab, &files).await;
    for command in ["/proc/self/exe", "/proc/1/exe", "/bin/script"] {
        let more = json!({"container_image": image});
        // Engines differ in whether they start it.
        let (_, child) = lab.start(&[command], more, &[]).await;
        println!("{command}: {}", finish(child).await.output);
        let after = facts();
        // Before the assertion, so that a failed test leaves no program that anyone may change.
        fs::set_permissions(program, fs::Permissions::from_mode(before.0)).unwrap();
        assert_eq!(after, before, "{command}");
    }
}

/// One of the programs beside this file, compiled.
fn compiled(name: &str, options: &[&str]) -> Vec<u8> {
    let source = Path::new(SOURCES).join(name).with_extension("c");
    let file =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{:016x}", fastrand::u64(..)));
    let mut compiler = Command::new("cc");
    let status = compiler
        .args(options)
        .arg("-o")
        .args([&file, &source])
        .status();
    assert!(status.expect("these tests need cc").success());
    let program = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    program
}

/// An image with busybox and these programs.
async fn image(lab: &Lab, files: &[(&str, Vec<u8>)]) -> String {
    let mut layer = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        layer.append_data(&mut header, name, &content[..]).unwrap();
    }
    let layers = [busybox_layer(), layer.into_inner().unwrap()];
    let (archive, id) = archive(&layers, json!({"Env": ["PATH=/bin"]}));
    lab.image_of(&archive, &id).await
}

fn column(engine: Engine) -> usize {
    match engine {
        Engine::Builtin => 0,
        Engine::Crun => 1,
        Engine::Runc => 2,
        Engine::Docker | Engine::DockerAsNobody => 3,
        Engine::Podman => 4,
        Engine::Apptainer => 5,
        Engine::CrunAsNobody => 6,
        Engine::RuncAsNobody => 7,
        Engine::PodmanAsNobody => 8,
        Engine::ApptainerAsNobody => 9,
    }
}

fn compare_with_document(column: usize, attempts: &[Attempt]) {
    static DOCUMENT_LOCK: Mutex<()> = Mutex::new(());
    let _lock = DOCUMENT_LOCK.lock();
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let (before, rest) = document.split_once(BEGIN).unwrap();
    let (table, after) = rest.split_once(END).unwrap();
    let new = with_column(table, column, attempts);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(DOCUMENT, [before, BEGIN, &new, END, after].concat()).unwrap();
        return;
    }
    assert!(
        new == table,
        "docs/engines.md should have in the column \"{}\" (UPDATE_DOCS=1 writes it):\n{new}",
        COLUMNS[column]
    );
}

/// The table with this engine's results; those of the others are taken over.
fn with_column(table: &str, column: usize, attempts: &[Attempt]) -> String {
    let old: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let mut new = format!("| attempt | {} |\n", COLUMNS.join(" | "));
    new += &format!("|---|{}\n", "---|".repeat(COLUMNS.len()));
    for attempt in attempts {
        let name = format!("`{}`: {}", attempt.name, attempt.tries);
        let row = old.iter().find(|row| row[0] == name);
        let documented = |index: usize| row.and_then(|row| row.get(index + 1)).copied();
        // A kernel without the thing cannot tell whether the container would get at it.
        let is_missing = attempt.reason == "No such file or directory";
        let cell = |index: usize| match documented(index) {
            _ if index == column && attempt.is_done => "yes",
            Some("yes") if index == column && is_missing => "yes",
            _ if index == column => "–",
            known => known.unwrap_or("?"),
        };
        let cells: Vec<&str> = (0..COLUMNS.len()).map(cell).collect();
        new += &format!("| {name} | {} |\n", cells.join(" | "));
    }
    new
}
