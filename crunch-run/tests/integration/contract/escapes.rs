//! Attempts of a container to get out, as a table in `docs/engines.md`. `UPDATE_DOCS=1` writes the
//! table anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use serde_json::json;

use crate::contract::engines::Engine;
use crate::contract::lab::Lab;
use crate::engine_lab::{archive, busybox_layer};

const SOURCE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/integration/contract/escapes.c"
);
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
    let image = image(lab).await;
    let ended = lab
        .run(&["/bin/escapes"], json!({"container_image": image}))
        .await;
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

/// The program, linked statically, in an image.
async fn image(lab: &Lab) -> String {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        // Each test is a process of its own: another may be reading the program now.
        let own = dir.join(format!("escapes-{}", std::process::id()));
        let status = Command::new("cc")
            .args(["-static", "-O1", "-o"])
            .args([&own, Path::new(SOURCE)])
            .status();
        assert!(status.expect("these tests need cc").success());
        let program = dir.join("escapes");
        fs::rename(own, &program).unwrap();
        program
    });
    let program = fs::read(program).unwrap();
    let mut layer = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(program.len() as u64);
    header.set_mode(0o755);
    layer
        .append_data(&mut header, "bin/escapes", &program[..])
        .unwrap();
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
        let cell = |index: usize| match row {
            _ if index == column && attempt.is_done => "yes",
            _ if index == column => "–",
            Some(row) => row.get(index + 1).copied().unwrap_or("?"),
            None => "?",
        };
        let cells: Vec<&str> = (0..COLUMNS.len()).map(cell).collect();
        new += &format!("| {name} | {} |\n", cells.join(" | "));
    }
    new
}
