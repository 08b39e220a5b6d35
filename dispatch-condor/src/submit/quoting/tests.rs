//! condor_submit's own reading of quoted values.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

#[test]
fn what_cannot_be_written_is_refused() {
    #[rustfmt::skip]
    let rows = [
        (line("x", "a\nqueue 100"), "line break"),
        (line("x", "a\\"), "backslash"),
        (path("x", " /a"), "blank"),
        (path("x", "/a$$(Memory)"), "$$"),
        (path_in_list("x", "/a,b"), "comma"),
        (item("x", "a b"), "letters"),
        (item("x", "$(HOME)"), "letters"),
        (word("x", "a\0"), "NUL"),
        (variable("A B", "x"), "name"),
    ];
    for (got, why) in rows {
        let error = got.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(path("x", "/a $(b)").unwrap(), "/a $(DOLLAR)(b)");
    assert_eq!(item("x", "a,b").unwrap(), "a$(Comma)b");
    assert_eq!(word("x", "back\\").unwrap(), "'back\\'");
}

/// condor_submit of a lab or of the system.
fn condor_submit() -> Option<PathBuf> {
    let prefix = std::env::var("CONDOR_PREFIX").unwrap_or_else(|_| "/opt/condor-trixie".into());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let lab = PathBuf::from(prefix).join("usr/bin");
    let mut dirs = std::env::split_paths(&path).chain([lab]);
    let found = dirs.find_map(|dir| {
        let file = dir.join("condor_submit");
        file.is_file().then_some(file)
    });
    assert!(
        found.is_some() || std::env::var_os("CI").is_none(),
        "this test needs condor_submit (contrib/install-deps labs)"
    );
    if found.is_none() {
        eprintln!("SKIPPED: this test needs condor_submit (contrib/install-deps labs)");
    }
    found
}

/// The jobs that condor_submit makes of a description, without submitting them.
fn dry_run(program: &PathBuf, description: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("condor_config");
    let path = dir.path().display();
    std::fs::write(
        &config,
        format!("LOCAL_DIR = {path}\nLOG = {path}\nCONDOR_HOST = 127.0.0.1\nUID_DOMAIN = lab\n"),
    )
    .unwrap();
    let mut child = Command::new(program)
        .args(["-dry-run:full", "-", "-"])
        .env("CONDOR_CONFIG", &config)
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(description.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}\n{description}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split("\n\n").map(str::to_owned).collect()
}

/// The value of a string attribute in the job ad.
fn attribute(job: &str, name: &str) -> Option<String> {
    let prefix = format!("{name} = \"");
    let line = job.lines().find_map(|line| line.strip_prefix(&prefix))?;
    Some(line.strip_suffix('"')?.replace("\\\"", "\""))
}

/// Splits the "new" syntax of a job ad into words.
fn words(raw: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<String>, false);
    let mut characters = raw.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\'' if quoted && characters.peek() == Some(&'\'') => {
                characters.next();
                word.get_or_insert_default().push('\'');
            }
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn condor_submit_reads_every_word_as_it_was_meant() {
    let Some(program) = condor_submit() else {
        return;
    };
    let text =
        r#"[a-c ,;:'"\\$(){}\[\]%#@=*\t]{0,12}|(\$\(HOME\)|\$ENV\(HOME\)|\$\$|\\|''|"|a b){1,4}"#;
    let case = prop::collection::vec(text, 1..5);
    let mut runner = TestRunner::new(Config::with_cases(60));
    let run = runner.run(&case, |texts| {
        let written: Result<Vec<String>, _> = texts.iter().map(|text| word("x", text)).collect();
        let mut values = texts.iter().map(|text| variable("V", text));
        let (Ok(written), Some(Ok(value))) = (written, values.next_back()) else {
            prop_assert!(texts.iter().any(|text| text.contains("$$")));
            return Ok(());
        };
        let description = format!(
            "executable = /bin/true\ntransfer_executable = false\narguments = {}\nenvironment = {}\nqueue\n",
            quoted_list(&written),
            quoted_list(&[value]),
        );
        let jobs = dry_run(&program, &description);
        let job = jobs.iter().find(|job| job.contains("Cmd = ")).unwrap();
        let got = attribute(job, "Arguments").unwrap_or_default();
        prop_assert_eq!(&words(&got), &texts, "{}", description);
        let got = attribute(job, "Environment").unwrap_or_default();
        let expected = format!("V={}", texts[texts.len() - 1]);
        prop_assert_eq!(words(&got), vec![expected], "{}", description);
        Ok(())
    });
    run.unwrap();
}

#[test]
fn condor_submit_reads_every_item_as_it_was_meant() {
    let Some(program) = condor_submit() else {
        return;
    };
    let case = (r"[a-z,.+@-]{0,8}", r"/[a-z (){}$#\\]{0,12}[a-z]");
    let mut runner = TestRunner::new(Config::with_cases(40));
    let run = runner.run(&case, |(name, place)| {
        let (Ok(first), Ok(last)) = (item("x", &name), path_in_list("x", &place)) else {
            prop_assert!(place.contains("$$"));
            return Ok(());
        };
        let description = format!(
            "executable = /bin/true\ntransfer_executable = false\nComma = ,\n+Name = \"$(Name)\"\n+Place = \"$(Place)\"\n\
             transfer_input_files = $(Place)/token\nqueue Name,Place from (\n{first},{last}\n)\n"
        );
        let jobs = dry_run(&program, &description);
        let job = jobs.iter().find(|job| job.contains("Cmd = ")).unwrap();
        let token = format!("{place}/token");
        for (attribute_name, expected) in [("Name", &name), ("Place", &place), ("TransferInput", &token)] {
            let got = attribute(job, attribute_name).unwrap_or_default();
            prop_assert_eq!(&got, expected, "{} of {}", attribute_name, description);
        }
        Ok(())
    });
    run.unwrap();
}
