//! Standard streams of a command.

use serde_json::json;

use crate::contract::lab::Lab;
use crate::run_lab::file;

pub async fn stdout_and_stderr_are_apart(lab: &Lab) {
    let ended = lab.sh("echo out; echo err >&2; echo out again").await;
    assert_eq!(ended.stdout(), ["out", "out again"]);
    assert_eq!(ended.stderr(), ["err"]);
}

pub async fn lines_keep_their_order(lab: &Lab) {
    let ended = lab.sh("seq 1 20000").await;
    let numbers: Vec<u32> = ended.stdout().iter().map(|l| l.parse().unwrap()).collect();
    assert!(numbers.iter().copied().eq(1..=20_000));
}

pub async fn no_output_at_all(lab: &Lab) {
    let ended = lab.run(&["true"], json!({})).await;
    assert!(ended.stdout().is_empty() && ended.stderr().is_empty());
    assert!(ended.output.is_empty());
}

pub async fn output_without_an_end_of_line(lab: &Lab) {
    let ended = lab.sh("printf 'no end'; printf 'nor here' >&2").await;
    assert_eq!(ended.stdout(), ["no end"]);
    assert_eq!(ended.stderr(), ["nor here"]);
}

pub async fn binary_output_arrives_byte_for_byte(lab: &Lab) {
    let mounts = json!({
        "/out": {"kind": "tmp", "capacity": 8 << 20},
        "stdout": {"kind": "file", "path": "/out/said"},
    });
    let script = "head -c 3000000 /dev/urandom >/out/made; cat /out/made; \
                  sha256sum </out/made >/out/sum; rm /out/made";
    let ended = lab.sh_with(script, json!({"mounts": mounts})).await;
    assert_eq!(ended.code(), 0);
    // The lab's text is lossy, so the container checks what the output holds.
    let output = ended.record.output.clone().unwrap();
    let mounts = json!({
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "/in": {"kind": "collection", "portable_data_hash": output},
    });
    let again = lab
        .sh_with(
            "sha256sum </in/said | cmp - /in/sum && wc -c </in/said",
            json!({"mounts": mounts}),
        )
        .await;
    assert_eq!(again.stdout(), ["3000000"]);
}

pub async fn an_endless_line_is_cut(lab: &Lab) {
    let ended = lab
        .sh("head -c 1000000 /dev/zero | tr '\\0' x; echo; echo last")
        .await;
    let stdout = ended.stdout();
    assert_eq!(stdout.last(), Some(&"last"));
    assert!(stdout.len() > 2 && stdout.iter().all(|line| line.len() <= 64 << 10));
    let count: usize = file(&ended.log, "stdout.txt")
        .bytes()
        .filter(|b| *b == b'x')
        .count();
    assert_eq!(count, 1_000_000);
}

pub async fn stdin_is_empty_unless_given(lab: &Lab) {
    let ended = lab.sh("wc -c").await;
    assert_eq!(ended.stdout(), ["0"]);
}

pub async fn who_closes_its_streams_goes_on(lab: &Lab) {
    let ended = lab
        .sh("echo first; exec >&- 2>&-; sleep 2; echo done >/out/file; exit 4")
        .await;
    assert_eq!(ended.code(), 4);
    assert_eq!(ended.lines("stdout.txt"), ["first"]);
    assert_eq!(file(&ended.output, "file"), "done\n");
}

pub async fn runaway_output_is_capped_and_the_command_goes_on(lab: &Lab) {
    let script =
        "yes 'a line of some length' | head -c 52428800; echo; echo last; echo done >/out/file";
    let (job, child) = lab
        .start(&["sh", "-c", script], json!({}), &["--log-limit=1MiB"])
        .await;
    let ended = lab.end(job, child).await;
    let stdout = ended.stdout();
    let length = file(&ended.log, "stdout.txt").len();
    assert!((1 << 19..1 << 21).contains(&length), "{length}");
    assert_eq!(stdout.last(), Some(&"last"));
    assert!(
        stdout
            .iter()
            .any(|line| line.contains("has reached its limit of 1048576 bytes"))
    );
    assert_eq!(file(&ended.output, "file"), "done\n");
}
