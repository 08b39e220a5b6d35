//! The built-in engine runs real containers. Needs root and busybox-static.

use std::fs;
use std::path::PathBuf;

use crate::engine_lab::{Lab, exec, expected_capabilities, shell};
use crate::shim_scenarios;
use container_engine::{Bind, EngineError, ExitStatus, Network, StartError};

#[tokio::test]
async fn exit_codes_output_and_signals_come_out_as_they_are() {
    let lab = Lab::new();
    let ended = lab
        .run(shell("echo out; echo err >&2; exit 7"))
        .await
        .unwrap();
    assert_eq!(ended.code(), 7);
    assert_eq!(ended.stdout, "out\n");
    assert_eq!(ended.stderr, "err\n");
    assert!(!ended.exit.oom_killed);
    assert!(ended.exit.peak_memory.is_some_and(|peak| peak > 0));

    // The first process of a pid namespace is safe from its own signals, its children are not.
    let ended = lab.run(shell("sh -c 'kill -9 $$'; exit $?")).await.unwrap();
    assert_eq!(ended.code(), 137);
    let ended = lab.run(exec(&["true"])).await.unwrap();
    assert_eq!(ended.exit.status, ExitStatus::Code(0));
}

#[tokio::test]
async fn environment_working_directory_and_user_are_the_image_s_unless_asked_otherwise() {
    let lab = Lab::with_config(serde_json::json!({
        "Env": ["PATH=/bin", "FROM=image", "BOTH=image"],
        "Entrypoint": ["sh", "-c"],
        "Cmd": ["echo cmd"],
        "WorkingDir": "/made/for/it",
        "User": "ann",
    }));
    let mut request = exec(&["pwd; id; echo $FROM $BOTH $HOME; env | wc -l"]);
    request.environment.insert("BOTH".into(), "request".into());
    let ended = lab.run(request).await.unwrap();
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines[0], "/made/for/it", "{}", ended.stderr);
    assert_eq!(
        lines[1],
        "uid=1000(ann) gid=100(users) groups=10(wheel),100(users)"
    );
    assert_eq!(lines[2], "image request /home/ann");
    // PATH FROM BOTH HOME HOSTNAME, and the shell's own variables; none of this process.
    assert!(lines[3].trim().parse::<u32>().unwrap() <= 8, "{}", lines[3]);

    assert_eq!(lab.run(exec(&[])).await.unwrap().stdout, "cmd\n");
    let mut request = exec(&["pwd"]);
    request.cwd = Some("/tmp".into());
    assert_eq!(lab.run(request).await.unwrap().stdout, "/tmp\n");
}

#[tokio::test]
async fn binds_are_writable_only_where_asked() {
    let lab = Lab::new();
    let (data, out) = (lab.scratch("data"), lab.scratch("out"));
    fs::write(data.join("in"), "hello\n").unwrap();
    let mut request = shell(
        "cat /data/in /deep/er/file; echo x >/data/new && echo WROTE; cp /data/in /out/copy; echo y >/deep/er/file && echo WROTE",
    );
    request.binds = [
        ("/deep/er/file", data.join("in"), false),
        ("/data", data.clone(), false),
        ("/out", out.clone(), true),
    ]
    .into_iter()
    .map(|(target, host, writable)| Bind {
        host,
        target: PathBuf::from(target),
        writable,
    })
    .collect();
    let ended = lab.run(request).await.unwrap();
    assert_eq!(ended.stdout, "hello\nhello\n", "{}", ended.stderr);
    assert_eq!(fs::read_to_string(out.join("copy")).unwrap(), "hello\n");
    assert!(!data.join("new").exists());
    // None of the container's mounts is visible on the node.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(lab.dir.path().to_str().unwrap()));
}

#[tokio::test]
async fn no_network_means_only_a_working_loopback() {
    let lab = Lab::new();
    let ended = lab
        .run(shell(
            "ls /sys/class/net; ip addr show lo | head -1; echo pong | nc -l -p 9999 & \
             until nc 127.0.0.1 9999 </dev/null 2>/dev/null; do :; done; cat /etc/hosts; hostname",
        ))
        .await
        .unwrap();
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines[0], "lo", "{}", ended.stdout);
    assert!(lines[1].contains("UP"), "{}", lines[1]);
    assert_eq!(lines[2], "pong");
    assert!(lines[3].starts_with("127.0.0.1\tlocalhost zzzzz-dz642-"));

    let mut request = shell("ls /sys/class/net | wc -l; hostname; cat /etc/hosts");
    request.network = Network::Host;
    let ended = lab.run(request).await.unwrap();
    let interfaces = fs::read_dir("/sys/class/net").unwrap().count();
    assert_eq!(
        ended.stdout.lines().next(),
        Some(interfaces.to_string().as_str())
    );
    assert!(
        ended
            .stdout
            .ends_with(&fs::read_to_string("/etc/hosts").unwrap())
    );
}

#[tokio::test]
async fn privileges_are_few() {
    let lab = Lab::new();
    let ended = lab
        .run(shell(
            "grep -E '^(SigBlk|SigIgn|CapEff|CapBnd|CapInh|CapAmb|NoNewPrivs)' /proc/self/status; \
             cat /proc/kcore | wc -c; echo 1 >/proc/sys/kernel/panic; touch /sys/x; \
             ls /proc/acpi 2>/dev/null | wc -l; mount -t tmpfs x /tmp; \
             ulimit -c; ls /dev; mknod /tmp/d b 254 0 && dd if=/tmp/d bs=1 count=1; cat /proc/self/cgroup; \
             ls /proc/self/fd",
        ))
        .await
        .unwrap();
    let field = |name: &str| {
        ended
            .stdout
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(":\t"))
            .unwrap_or_else(|| panic!("{name} in {}", ended.stdout))
    };
    let caps = expected_capabilities();
    for set in ["CapEff", "CapBnd"] {
        assert_eq!(u64::from_str_radix(field(set), 16), Ok(caps), "{set}");
    }
    for set in ["CapInh", "CapAmb", "SigBlk"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    // Rust programs ignore SIGPIPE; what they run must not.
    let ignored = u64::from_str_radix(field("SigIgn"), 16).unwrap();
    assert_eq!(ignored & (1 << 12 | 1 << 14), 0, "PIPE, TERM: {ignored:x}");
    assert_eq!(field("NoNewPrivs"), "1");
    let rest: Vec<&str> = ended.stdout.lines().skip(7).collect();
    assert_eq!(
        rest[..3],
        ["0", "0", "0"],
        "kcore, acpi, core size: {}",
        ended.stdout
    );
    for refused in ["panic", "/sys/x", "mount", "mknod:"] {
        assert!(
            ended.stderr.contains(refused),
            "{refused}: {}",
            ended.stderr
        );
    }
    for device in [
        "null", "zero", "full", "random", "urandom", "tty", "shm", "pts", "ptmx", "mqueue",
    ] {
        assert!(rest.contains(&device), "{device}: {rest:?}");
    }
    assert!(!ended.stdout.contains("vda") && !ended.stdout.contains("nvidia"));
    assert!(
        rest.iter()
            .filter(|l| l.contains(":memory:"))
            .all(|l| l.ends_with(":/"))
    );
    // No descriptor of crunch-run or the shim: only 0, 1, 2 and that of the listing.
    assert_eq!(rest[rest.len() - 4..], ["0", "1", "2", "3"]);
}

#[tokio::test]
async fn what_is_wrong_with_the_command_is_one_clear_sentence() {
    let lab = Lab::new();
    let missing = lab.dir.path().join("not-there");
    let mut no_source = exec(&["true"]);
    no_source.binds.push(Bind {
        host: missing.clone(),
        target: "/x".into(),
        writable: false,
    });
    let mut bad_target = exec(&["true"]);
    bad_target.binds.push(Bind {
        host: "/tmp".into(),
        target: "/x/../../y".into(),
        writable: false,
    });
    let in_dir = |cwd: &str| {
        let mut request = exec(&["true"]);
        request.cwd = Some(cwd.to_owned());
        request
    };
    let cases = [
        (exec(&["nope", "-x"]), "command \"nope\" not found in the image; PATH is /bin".to_owned()),
        (exec(&["/opt/nope"]), "command \"/opt/nope\" does not exist in the image".to_owned()),
        (exec(&["plain"]), "command \"plain\" (/bin/plain) is not an executable file for user 0".to_owned()),
        (exec(&["/bin"]), "command \"/bin\" (/bin) is not an executable file for user 0".to_owned()),
        (
            exec(&["script"]),
            "command \"/bin/script\" cannot be executed: its interpreter or dynamic loader /no/such/interpreter is not in the image".to_owned(),
        ),
        (
            exec(&["nonsense"]),
            "command \"/bin/nonsense\" is not a program this machine can run (wrong architecture, or a script without #!)".to_owned(),
        ),
        (in_dir("/no/such"), "working directory /no/such does not exist in the container".to_owned()),
        (in_dir("/etc/passwd"), "working directory /etc/passwd cannot be entered: it is not a directory".to_owned()),
        (in_dir("/proc/self/fd/5"), String::new()),
        (
            no_source,
            format!("{}, to be mounted at /x, does not exist on this node", missing.display()),
        ),
        (bad_target, "mount target /x/../../y is not an absolute path without \"..\"".to_owned()),
    ];
    for (request, expected) in cases {
        let (name, shown) = (
            request.name.clone(),
            format!("{:?} in {:?}", request.command, request.cwd),
        );
        let error = match lab.run(request).await {
            Ok(ended) => panic!("{shown} ran: {}", ended.stdout),
            Err(EngineError::Start(error)) => error,
            Err(other) => panic!("{shown}: {other}"),
        };
        if expected.is_empty() {
            assert!(
                matches!(
                    error,
                    StartError::CwdMissing { .. } | StartError::CwdUnusable { .. }
                ),
                "{shown}: {error}"
            );
        } else {
            assert_eq!(error.to_string(), expected, "{shown}");
        }
        // Nothing of the container is left.
        assert_eq!(shim_scenarios::entries(&lab.scratch(&name)), 0, "{shown}");
    }
    assert_eq!(fs::read_dir(lab.dir.path().join("run")).unwrap().count(), 0);
}

#[tokio::test]
async fn an_image_s_unknown_user_is_named() {
    let lab = Lab::with_config(serde_json::json!({"Env": ["PATH=/bin"], "User": "eve"}));
    let error = lab.run(exec(&["true"])).await.err().expect("refused");
    assert_eq!(
        error.to_string(),
        "user \"eve\" is not in the image's /etc/passwd"
    );
    assert!(error.is_user_error());
}

#[tokio::test]
async fn no_command_at_all_is_said() {
    let lab = Lab::with_config(serde_json::json!({"Env": ["PATH=/bin"]}));
    let error = lab.run(exec(&[])).await.err().expect("refused");
    assert!(
        error.to_string().starts_with("no command was given"),
        "{error}"
    );
}
