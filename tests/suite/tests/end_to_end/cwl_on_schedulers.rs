//! A dozen workflows of arvados-cwl-runner, all at once, on this machine, on Slurm and on HTCondor:
//! what runs on one runs on the others.

use std::ffi::OsString;

use serde_json::{Value, json};
use suite_tests::stack::environment;

use crate::backend::{Backend, on_every_backend};
use crate::cwl_runner::{CwlUser, Runner, ended};

/// How a workflow is started: its runner is this process, or a job.
const LOCAL: &str = "--local";
const SUBMIT: &str = "--submit";

/// File, flag, inputs, and the text of the output.
fn workflows(stored: &str) -> Vec<(&'static str, &'static str, Value, &'static str)> {
    let words = || json!({"words": ["one", "two"]});
    let file = |name: &str| json!({"class": "File", "location": name});
    let pairs = json!({"words": ["one", "two"], "others": ["three", "four"]});
    let mut data = file("data");
    data["secondaryFiles"] = json!([file("data.index")]);
    vec![
        ("scatter.cwl", LOCAL, words(), "one\ntwo\n"),
        ("scatter.cwl", SUBMIT, words(), "one\ntwo\n"),
        ("nested.cwl", SUBMIT, words(), "one\ntwo\n"),
        (
            "conditional.cwl",
            LOCAL,
            json!({"word": "one", "go": true, "stay": false}),
            "one\n",
        ),
        ("directory.cwl", LOCAL, words(), "one\ntwo\n"),
        ("workdir.cwl", LOCAL, words(), "one\ntwo\n"),
        (
            "secondary.cwl",
            LOCAL,
            json!({"data": data, "more": file("more")}),
            "one\ntwo\n",
        ),
        ("codes.cwl", SUBMIT, json!({}), "one\ntwo\n"),
        ("product.cwl", SUBMIT, pairs, "one three\ntwo four\n"),
        (
            "collection.cwl",
            LOCAL,
            json!({"data": file(stored)}),
            "two\n",
        ),
    ]
}

async fn the_dozen(backend: Backend) {
    let stack = backend.stack().await;
    let dir = stack.dir.path().join("cwl");
    std::fs::create_dir(&dir).unwrap();
    for (name, text) in [
        ("data", "nothing"),
        ("data.index", "one\n"),
        ("more", "two\n"),
    ] {
        std::fs::write(dir.join(name), text).unwrap();
    }
    let user = CwlUser::new(&dir, environment(&stack.ready));
    user.add_runner_image();
    let start = |flag: &str, workflow: &str, inputs: &Value| -> Runner {
        let name = format!("{workflow}{flag}");
        let inputs = user.inputs(&name, inputs).into_os_string();
        // Each by jobs of its own.
        let flags = [flag, "--disable-reuse", "--name", &name, workflow];
        user.start(flags.map(OsString::from).into_iter().chain([inputs]))
    };
    let register = ["--create-workflow", "--no-copy-deps", "scatter.cwl"];
    let register = user.start(register);
    let failing = start(LOCAL, "fails.cwl", &json!({}));
    let running: Vec<_> = workflows(&user.put("more"))
        .into_iter()
        .map(|(workflow, flag, inputs, expected)| {
            (workflow, start(flag, workflow, &inputs), expected)
        })
        .collect();
    let (output, said) = ended(register);
    let uuid = String::from_utf8(output.stdout).unwrap();
    assert!(uuid.starts_with("local-7fd4e-"), "{said}");
    let words = json!({"words": ["three", "four"]});
    let registered = start(SUBMIT, uuid.trim_end(), &words);
    for (workflow, runner, expected) in running {
        assert_eq!(user.text(runner), expected, "{workflow}");
    }
    assert_eq!(user.text(registered), "three\nfour\n");
    let (output, said) = ended(failing);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("permanentFail"), "{said}");
}
on_every_backend!(the_dozen);
