//! Every test, path and flag that the documents name exists.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use suite_tests::program::binary;

/// Flags of other programs that the documents name: Slurm, HTCondor, CL-MW, Arvados and the system.
/// `--list` and `--kill` of crunch-run are for upstream's dispatchers, and not in its help.
const FOREIGN_FLAGS: &str = "--api-client-authorization --array --begin --bench --chdir --clear-groups --comment \
    --container-network-mode --deadline --exclude --exclusive --for-queue --hold --home-dir --init-groups --kill --licenses \
    --mw-master-host --mw-master-port --mw-member-id --mw-resource-file --mw-slave --nice --requeue --wrap --no-requeue \
    --nodes --now --nv --open-mode --output --parsable --regid --reuid --security --shell \
    --signal --system --test-only --trace --user-group --uuid --wckey \
    --create-workflow --local --message --no-copy-deps --no-wait --submit --submit-runner-image \
    --cluster-generic-cancel-cmd --cluster-generic-status-cmd --cluster-generic-submit-cmd --executor --jobs \
    --shared-fs-usage";

/// The `module::name`s in backquotes.
fn named(text: &str) -> BTreeSet<&str> {
    let is_test = |word: &&str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c);
        word.contains("::") && word.chars().all(plain)
    };
    text.split('`').skip(1).step_by(2).filter(is_test).collect()
}

/// Folders and files that the documents for developers name: from the root, or below the sources of
/// a crate.
#[test]
fn every_path_in_the_architecture_exists() {
    let root = suite_tests::workspace();
    let crates = [
        "dispatch-core",
        "dispatch-slurm",
        "crunch-run",
        "dispatch-api",
    ];
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    for document in ["docs/architecture.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root.join(document)).unwrap();
        let quoted = text.split('`').skip(1).step_by(2);
        let paths: BTreeSet<&str> = quoted
            .filter(|word| word.contains('/') && word.chars().all(plain))
            .collect();
        assert!(paths.len() > 10, "{document}: {paths:?}");
        for path in paths {
            let below = |name: &&str| root.join(name).join("src").join(path).exists();
            assert!(
                root.join(path).exists() || crates.iter().any(below),
                "{document} names {path}, which does not exist"
            );
        }
    }
}

#[test]
fn lines_of_documents_fit_into_100_columns() {
    let root = suite_tests::workspace();
    let in_docs = std::fs::read_dir(root.join("docs")).unwrap();
    let mut documents: Vec<PathBuf> = in_docs.map(|entry| entry.unwrap().path()).collect();
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    let at_root = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
    ];
    documents.extend(at_root.map(|name| root.join(name)));
    assert!(documents.len() > 10, "{documents:?}");
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        // A row of a table cannot be broken.
        let is_long = |line: &str| line.chars().count() > 100 && !line.starts_with('|');
        let long = text.lines().position(is_long);
        assert_eq!(
            long.map(|at| at + 1),
            None,
            "line of {}",
            document.display()
        );
    }
}

#[test]
fn every_test_named_in_the_documents_exists() {
    let root = suite_tests::workspace();
    let files = suite_tests::source_files(root);
    let without_blanks = |path: &PathBuf| {
        let mut text = std::fs::read_to_string(path).unwrap();
        text.retain(|c| !c.is_whitespace());
        text
    };
    let code: Vec<String> = files.iter().map(without_blanks).collect();
    let text = std::fs::read_to_string(root.join("docs/reliability.md")).unwrap();
    let tests = named(&text);
    assert!(tests.len() > 70, "only {} tests are named", tests.len());
    for test in tests {
        let name = test.rsplit("::").next().unwrap();
        // A function, or a module with one function for each scheduler.
        let forms = [format!("fn{name}("), format!("mod{name}{{")];
        let is_there = |code: &String| forms.iter().any(|form| code.contains(form));
        assert!(
            code.iter().any(is_there),
            "{test} is named in docs/reliability.md and does not exist"
        );
    }
}

/// The words of `text` that have the form of a long flag.
fn long_flags(text: &str) -> BTreeSet<&str> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.split(|c| !is_plain(c))
        .filter(|word| {
            let name = word.strip_prefix("--");
            name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
        })
        .collect()
}

/// The manual pages of a program and of its commands. They have the same text as `--help`.
fn manual(program: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary(program));
    command.arg("man");
    if program != "crunch-run" {
        command.arg("--dir").arg(dir.path());
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
    let mut text = String::from_utf8(output.stdout).unwrap();
    for page in std::fs::read_dir(dir.path()).unwrap() {
        text += &std::fs::read_to_string(page.unwrap().path()).unwrap();
    }
    text.replace("\\-", "-")
}

#[test]
fn every_flag_in_the_documents_exists() {
    let programs = [
        "crunch-run",
        "dispatch",
        "dispatch-api",
        "dispatch-condor",
        "dispatch-local",
        "dispatch-overseer",
        "dispatch-slurm",
    ];
    let manuals: String = programs.map(manual).concat();
    let mut known = long_flags(&manuals);
    assert!(known.len() > 100, "{known:?}");
    known.extend(FOREIGN_FLAGS.split_whitespace());
    let root = suite_tests::workspace();
    let mut documents = vec![root.join("README.md"), root.join("CHANGELOG.md")];
    for folder in ["docs", "contrib/slurm", "contrib/condor"] {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        documents.extend(paths.filter(|path| path.is_file()));
    }
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        let unknown: Vec<_> = long_flags(&text).difference(&known).copied().collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", document.display());
    }
}

/// Elsewhere than on Debian and Ubuntu, building goes on with what the system has.
#[test]
fn install_deps_says_what_building_needs_where_there_is_no_apt_get() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let tools = tempfile::tempdir().unwrap();
    let needs = "building needs its C compiler, pkg-config and CA certificates";
    for (argument, says) in [(None, needs), (Some("labs"), "only on Debian and Ubuntu")] {
        let output = Command::new("/bin/bash")
            .arg(format!("{root}/contrib/install-deps"))
            .args(argument)
            .env("PATH", tools.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(says), "{stderr}");
    }
}
