//! Mounts of a container, and its output.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::contract::lab::{Ended, Lab};
use crate::run_lab::file;

/// Mounts beside an ordinary output directory.
fn beside_the_output(more: Value) -> Value {
    let mut mounts = json!({"/out": {"kind": "tmp", "capacity": 8 << 20}});
    for (target, mount) in more.as_object().into_iter().flatten() {
        mounts[target] = mount.clone();
    }
    json!({"mounts": mounts})
}

async fn collection(lab: &Lab, files: &[(&str, &[u8])]) -> Value {
    let pdh = lab.world.collection(files).await;
    json!({"kind": "collection", "portable_data_hash": pdh})
}

pub async fn a_collection_cannot_be_changed(lab: &Lab) {
    let files: &[(&str, &[u8])] = &[("file", b"content"), ("dir/other", b"more")];
    let mount = collection(lab, files).await;
    let script = "cat /in/file /in/dir/other; echo; \
                  (echo x >/in/file) 2>/dev/null || echo kept; \
                  (echo x >/in/dir/new) 2>/dev/null || echo kept; \
                  rm -f /in/dir/other 2>/dev/null || echo kept; \
                  chmod 777 /in/file 2>/dev/null || echo kept; cat /in/file /in/dir/other";
    let ended = lab
        .sh_with(script, beside_the_output(json!({"/in": mount})))
        .await;
    assert_eq!(
        ended.stdout(),
        ["contentmore", "kept", "kept", "kept", "kept", "contentmore"]
    );
}

pub async fn a_writable_collection_is_the_output_as_it_was_left(lab: &Lab) {
    let files: &[(&str, &[u8])] = &[("kept", b"1"), ("changed", b"2"), ("removed", b"3")];
    let mut mount = collection(lab, files).await;
    mount["writable"] = json!(true);
    let script =
        "echo new >/out/changed && rm /out/removed && mkdir /out/d && echo x >/out/d/added";
    let ended = lab
        .sh_with(script, json!({"mounts": {"/out": mount}}))
        .await;
    assert_eq!(ended.code(), 0, "{:?}", ended.stderr());
    assert_output(
        &ended,
        &[("changed", "new\n"), ("d/added", "x\n"), ("kept", "1")],
    );
}

pub async fn a_copy_below_the_output_may_be_changed(lab: &Lab) {
    let mut mount = collection(lab, &[("kept", b"1"), ("changed", b"2")]).await;
    mount["writable"] = json!(true);
    let ended = lab
        .sh_with(
            "echo new >/out/copy/changed",
            beside_the_output(json!({"/out/copy": mount})),
        )
        .await;
    assert_eq!(ended.code(), 0, "{:?}", ended.stderr());
    assert_output(&ended, &[("copy/changed", "new\n"), ("copy/kept", "1")]);
}

pub async fn text_and_json_arrive_as_they_were_given(lab: &Lab) {
    let more = beside_the_output(json!({
        "/etc/conf/text": {"kind": "text", "content": "ünï $HOME\n\tno end"},
        "/data.json": {"kind": "json", "content": {"b": [1, 9_007_199_254_740_993_i64], "a": "<&>"}},
    }));
    let ended = lab
        .sh_with(
            "cp /etc/conf/text /data.json /out; (echo x >/data.json) 2>/dev/null || echo kept",
            more,
        )
        .await;
    assert_eq!(ended.stdout(), ["kept"]);
    assert_output(
        &ended,
        &[
            // Encoded as upstream does it.
            (
                "data.json",
                r#"{"a":"\u003c\u0026\u003e","b":[1,9007199254740993]}"#,
            ),
            ("text", "ünï $HOME\n\tno end"),
        ],
    );
}

pub async fn a_tmp_mount_is_empty_writable_and_no_output(lab: &Lab) {
    let more = beside_the_output(json!({"/work/dir": {"kind": "tmp", "capacity": 8 << 20}}));
    let script = "ls -A /work/dir; echo x >/work/dir/file && cat /work/dir/file";
    let ended = lab.sh_with(script, more).await;
    assert_eq!(ended.stdout(), ["x"]);
    assert_output(&ended, &[]);
}

pub async fn more_than_a_tmp_mount_s_capacity_ends_it(lab: &Lab) {
    let more = beside_the_output(json!({"/work": {"kind": "tmp", "capacity": 1 << 20}}));
    let script = "head -c 3000000 /dev/zero >/work/file; sleep 1000";
    let (job, child) = lab
        .start(&["sh", "-c", script], more, &["--stop-grace=1s"])
        .await;
    let ended = lab.end(job, child).await;
    assert_eq!(ended.story().last(), Some(&"Cancelled"));
    assert!(
        ended.error().contains("1.0 MiB at /work"),
        "{}",
        ended.error()
    );
}

pub async fn stdin_is_a_file_of_a_collection(lab: &Lab) {
    let content: String = (0..100_000).map(|n| format!("{n}\n")).collect();
    let files: &[(&str, &[u8])] = &[("dir/in", content.as_bytes()), ("dir/other", b"no")];
    let mut mount = collection(lab, files).await;
    mount["path"] = json!("dir/in");
    let ended = lab
        .sh_with("wc -c; wc -c", beside_the_output(json!({"stdin": mount})))
        .await;
    assert_eq!(ended.stdout(), [&content.len().to_string(), "0"]);
}

pub async fn stdin_is_the_json_that_was_given(lab: &Lab) {
    let stdin = json!({"kind": "json", "content": {"a": ["b", null]}});
    let ended = lab
        .run(&["cat"], beside_the_output(json!({"stdin": stdin})))
        .await;
    assert_eq!(ended.stdout(), [r#"{"a":["b",null]}"#]);
}

pub async fn stdin_need_not_be_read(lab: &Lab) {
    let content = vec![b'x'; 2_000_000];
    let mut mount = collection(lab, &[("in", &content)]).await;
    mount["path"] = json!("in");
    let ended = lab
        .sh_with(
            "head -c 1; exit 6",
            beside_the_output(json!({"stdin": mount})),
        )
        .await;
    assert_eq!(ended.code(), 6);
    assert_eq!(ended.record.runtime_status.error, None);
}

pub async fn stdout_and_stderr_are_files_of_the_output(lab: &Lab) {
    let more = beside_the_output(json!({
        "stdout": {"kind": "file", "path": "/out/said/out.txt"},
        "stderr": {"kind": "file", "path": "/out/err.txt"},
    }));
    let ended = lab
        .sh_with("echo one; echo two >&2; echo three; exit 2", more)
        .await;
    assert_eq!(ended.code(), 2);
    assert_output(
        &ended,
        &[("err.txt", "two\n"), ("said/out.txt", "one\nthree\n")],
    );
    // Redirected streams are not in the log. The names begin with the container's, which may have
    // any letters.
    for name in ["stdout.txt", "stderr.txt"] {
        assert!(ended.log.iter().all(|(path, _)| !path.ends_with(name)));
    }
}

pub async fn a_link_to_a_collection_is_saved_by_reference(lab: &Lab) {
    let files: &[(&str, &[u8])] = &[("first", b"aaaa"), ("dir/second", b"bbbbbb")];
    let input = lab.world.collection(files).await;
    let mount = json!({"kind": "collection", "portable_data_hash": input});
    let ended = lab
        .sh_with(
            "ln -s /in/dir /out/dir && ln -s ../in/dir/second /out/file",
            beside_the_output(json!({"/in": mount})),
        )
        .await;
    assert_eq!(ended.code(), 0, "{:?}", ended.stderr());
    assert_output(&ended, &[("dir/second", "bbbbbb"), ("file", "bbbbbb")]);
    // The one block has both files; stored anew, the content would have another block.
    let output = ended.record.output.as_ref().unwrap();
    let blocks_of = async |collection: &str| {
        let found = lab.world.user.collection(collection).await.unwrap();
        let blocks: Vec<String> = found
            .manifest_text
            .split_whitespace()
            .filter_map(|word| word.split_once('+').map(|(hash, _)| hash.to_owned()))
            .collect();
        blocks
    };
    let block = blocks_of(input.as_str()).await.remove(0);
    assert!(
        blocks_of(output.as_str())
            .await
            .iter()
            .all(|hash| *hash == block)
    );
}

pub async fn odd_names_are_kept_in_the_output(lab: &Lab) {
    let names = [
        " leading",
        "a b",
        "a:b",
        "back\\slash",
        "new\nline",
        "-n",
        "*",
        "ünïcödé/日本",
        "'\"",
        "trailing ",
    ];
    let mut command = vec![
        "sh",
        "-c",
        "for n; do mkdir -p \"$(dirname -- \"/out/$n\")\" && echo x >\"/out/$n\" || exit 1; done",
        "sh",
    ];
    command.extend(names);
    let ended = lab.run(&command, json!({})).await;
    assert_eq!(ended.code(), 0, "{:?}", ended.stderr());
    let expected: Vec<(&str, &str)> = names.iter().map(|name| (*name, "x\n")).collect();
    assert_output(&ended, &expected);
}

pub async fn hundreds_of_files_are_saved(lab: &Lab) {
    let script = "for d in $(seq 20); do mkdir /out/$d; for f in $(seq 30); do echo $d-$f >/out/$d/$f; done; done";
    let ended = lab.sh(script).await;
    assert_eq!(ended.code(), 0, "{:?}", ended.stderr());
    assert_eq!(ended.output.len(), 600);
    for (path, content) in &ended.output {
        assert_eq!(content.trim_end(), path.replace('/', "-"));
    }
}

pub async fn files_nobody_may_read_are_saved(lab: &Lab) {
    let script = "umask 777; echo x >/out/closed; mkdir /out/dir; chmod 700 /out/dir; echo y >/out/dir/file; chmod 0 /out/dir";
    let ended = lab.sh(script).await;
    assert_eq!(ended.code(), 0, "{:?}", ended.stderr());
    assert_output(&ended, &[("closed", "x\n"), ("dir/file", "y\n")]);
}

pub async fn any_user_may_write_its_output(lab: &Lab) {
    let config = json!({"Env": ["PATH=/bin"], "User": "ann"});
    let mut more = beside_the_output(json!({"/work": {"kind": "tmp", "capacity": 1 << 20}}));
    more["container_image"] = json!(lab.image(config).await);
    let ended = lab
        .sh_with("echo x >/work/file && cp /work/file /out", more)
        .await;
    assert_eq!(ended.code(), 0, "{:?}", ended.stderr());
    assert_output(&ended, &[("file", "x\n")]);
}

pub async fn secrets_are_in_no_log_and_no_output(lab: &Lab) {
    let secret = json!({
        "/run/secret": {"kind": "text", "content": "sesame-4711\n"},
        "/out/key": {"kind": "json", "content": "sesame-4711"},
    });
    let ended = lab
        .sh_with(
            "cat /run/secret /out/key | wc -c; ls /out >/out/seen",
            json!({"secret_mounts": secret}),
        )
        .await;
    assert_eq!(ended.stdout(), ["25"]);
    let names: Vec<&String> = ended.output.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["seen"]);
    assert_eq!(file(&ended.output, "seen"), "key\nseen\n");
    for (name, text) in &ended.log {
        assert!(!text.contains("sesame"), "{name}");
    }
    assert!(!ended.program_output.contains("sesame"));
}

/// Checks that the output has exactly these files.
fn assert_output(ended: &Ended, expected: &[(&str, &str)]) {
    let found: BTreeMap<&str, &str> = ended
        .output
        .iter()
        .map(|(path, content)| (path.as_str(), content.as_str()))
        .collect();
    assert_eq!(found, expected.iter().copied().collect());
}

pub async fn files_that_are_lost_with_the_container_are_named(lab: &Lab) {
    let warning = |ended: &Ended| ended.record.runtime_status.warning.clone();
    let ended = lab.sh("echo 1 >/result.txt; echo 2 >/tmp/x; true").await;
    assert_eq!(
        warning(&ended).as_deref(),
        Some(
            "its output is empty, because it wrote nothing below /out; lost with the container: /result.txt"
        )
    );
    // Who has an output, has failed or has written temporary files only is not told.
    for script in [
        "echo 1 >/result.txt; echo 2 >/out/x",
        "echo 1 >/result.txt; false",
        "echo 1 >/tmp/x",
    ] {
        let ended = lab.sh(script).await;
        assert_eq!(warning(&ended), None, "{script}");
    }
}
