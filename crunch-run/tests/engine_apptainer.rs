//! Real containers from Apptainer, as root, and then all of it again as an ordinary user. Needs root, busybox-static
//! and apptainer.

mod engine_lab;

use std::path::Path;
use std::time::{Duration, Instant};

use crunch_run::engine::apptainer::{ApptainerEngine, Variant};
use crunch_run::engine::{Bind, Engine, EngineError, ExitStatus, Limits, Network};
use engine_lab::{Lab, ask, shell};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether these can be run here. Where the tests must not be skipped, they fail instead.
fn can_run() -> bool {
    let is_nobody = std::env::var_os("TEST_CRUNCH_RUN").is_some();
    let missing: Vec<&str> = [
        ("apptainer", which::which("apptainer").is_ok()),
        ("root", is_root() || is_nobody),
        ("busybox-static", Path::new("/bin/busybox").exists()),
    ]
    .into_iter()
    .filter(|(_, there)| !there)
    .map(|(what, _)| what)
    .collect();
    if missing.is_empty() {
        return true;
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "these tests need {missing:?}: contrib/install-deps labs"
    );
    eprintln!("SKIPPED: this test needs {missing:?}");
    false
}

fn lab_with(config: serde_json::Value) -> Lab {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    Lab::of(dir, run_dir, config, |store, settings| {
        Box::new(ApptainerEngine::new(store, settings, Variant::Apptainer)) as Box<dyn Engine>
    })
}

fn labs() -> Option<Lab> {
    can_run().then(|| lab_with(serde_json::json!({"Env": ["PATH=/bin"], "Cmd": ["sh"]})))
}

/// Nothing of a container is left in the laboratory's directory, nor mounted there.
fn assert_clean(lab: &Lab) {
    let left: Vec<_> = std::fs::read_dir(lab.dir.path().join("scratch"))
        .unwrap()
        .flatten()
        .flat_map(|scratch| std::fs::read_dir(scratch.path()).unwrap().flatten())
        .map(|entry| entry.path())
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(lab.dir.path().to_str().unwrap()));
    let notes = std::fs::read_dir(lab.dir.path().join("run")).unwrap();
    assert_eq!(notes.count(), 0);
}

fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn all_of_it_as_an_ordinary_user() {
    if is_root() && can_run() {
        engine_lab::again_as_nobody("all_of_it_as_an_ordinary_user");
    }
}

#[tokio::test]
async fn exit_codes_output_and_signals_come_out_as_they_are() {
    if let Some(lab) = labs() {
        let script = "echo out; echo err >&2; exit 7";
        let ended = lab.run(shell(script)).await.unwrap();
        assert_eq!(ended.code(), 7);
        assert_eq!((&*ended.stdout, &*ended.stderr), ("out\n", "err\n"));
        let ended = lab.run(shell("sh -c 'kill -9 $$'; exit $?")).await.unwrap();
        assert_eq!(ended.code(), 137);

        // Told as the program that runs it tells it.
        let ended = lab.run(shell("kill -9 $$")).await.unwrap();
        assert_eq!(ended.exit.status, ExitStatus::Code(137));
        assert!(!ended.exit.oom_killed);
        assert_clean(&lab);
    }
}

#[tokio::test]
async fn environment_and_working_directory_are_the_image_s_unless_asked_otherwise() {
    if !can_run() {
        return;
    }
    let lab = lab_with(serde_json::json!({
        "Env": ["PATH=/bin", "FROM=image", "BOTH=image", "ODD=$(id) `id`\n\"x\""],
        "Entrypoint": ["sh", "-c"],
        "Cmd": ["echo cmd"],
        "WorkingDir": "/made/for/it",
    }));
    let mut asked = ask(&["pwd; echo $FROM $BOTH $HOME; echo \"$ODD\"; \
        env | cut -d= -f1 | grep -v -e APPTAINER -e SINGULARITY -e '\"' | sort | tr '\\n' ' '"]);
    asked.environment.insert("BOTH".into(), "asked".into());
    let ended = lab.run(asked).await.unwrap();
    assert_eq!(
        ended.stdout,
        "/made/for/it\nimage asked /root\n$(id) `id`\n\"x\"\n\
         BOTH FROM HOME HOSTNAME LANG ODD PATH PROMPT_COMMAND PS1 PWD SHLVL "
    );
    assert_eq!(lab.run(ask(&[])).await.unwrap().stdout, "cmd\n");
    let mut asked = ask(&["pwd"]);
    asked.cwd = Some("/tmp".into());
    assert_eq!(lab.run(asked).await.unwrap().stdout, "/tmp\n");
}

#[tokio::test]
async fn the_root_is_writable_and_the_image_stays_as_it_was() {
    if let Some(lab) = labs() {
        let script = "echo new > /etc/new && rm /etc/group && mkdir /top && echo x >> /etc/passwd && ls /etc";
        let ended = lab.run(shell(script)).await.unwrap();
        assert_eq!(ended.stdout, "hosts\nnew\npasswd\n", "{}", ended.stderr);
        let ended = lab.run(shell("ls -d /etc/* /top")).await.unwrap();
        assert_eq!(ended.stdout, "/etc/group\n/etc/hosts\n/etc/passwd\n");
        assert_clean(&lab);
    }
}

#[tokio::test]
async fn binds_are_writable_only_where_asked() {
    if let Some(lab) = labs() {
        let host = lab.dir.path().join("host");
        std::fs::create_dir(&host).unwrap();
        std::fs::write(host.join("file"), "data").unwrap();
        let bind = |target: &str, writable| Bind {
            host: host.clone(),
            target: target.into(),
            writable,
        };
        let script = "cat /ro/file; echo no > /ro/file || echo refused; echo yes > /deep/er/new; cd /deep/er; pwd";
        let mut asked = shell(script);
        asked.binds = vec![bind("/ro", false), bind("/deep/er", true)];
        let ended = lab.run(asked).await.unwrap();
        assert_eq!(ended.stdout, "datarefused\n/deep/er\n", "{}", ended.stderr);
        assert_eq!(std::fs::read_to_string(host.join("new")).unwrap(), "yes\n");
        let mut asked = ask(&["pwd"]);
        asked.binds = vec![bind("/deep/er", true)];
        asked.cwd = Some("/deep/er".into());
        assert_eq!(lab.run(asked).await.unwrap().stdout, "/deep/er\n");
    }
}

#[tokio::test]
async fn without_a_network_there_is_only_loopback() {
    if let Some(lab) = labs() {
        let script = "ls /sys/class/net; ping -c 1 -W 60 127.0.0.1 >/dev/null && echo up; cat /etc/hosts | head -1";
        let ended = lab.run(shell(script)).await.unwrap();
        assert!(ended.stdout.starts_with("lo\n"), "{}", ended.stdout);
        assert!(
            ended.stdout.contains("127.0.0.1\tlocalhost"),
            "{}",
            ended.stdout
        );
        let mut asked = shell(
            "cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' ' | sort; ls /sys/class/net | wc -l",
        );
        asked.network = Network::Host;
        let ended = lab.run(asked).await.unwrap();
        let names = std::fs::read_dir("/sys/class/net").unwrap().count();
        assert_eq!(
            ended.stdout.lines().count(),
            names + 1,
            "{}{}",
            ended.stdout,
            ended.stderr
        );
    }
}

#[tokio::test]
async fn the_container_sees_only_its_own_processes_and_no_device_of_the_node() {
    if let Some(lab) = labs() {
        let script = "ls /proc | grep -c '^[0-9]'; ls /dev | tr '\\n' ' '; dd if=/proc/kcore bs=1 count=1 2>/dev/null | wc -c; \
             grep -e NoNewPrivs -e SigBlk /proc/self/status";
        let ended = lab.run(shell(script)).await.unwrap();
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert!(lines[0].parse::<u32>().unwrap() <= 4, "{}", ended.stdout);
        assert!(
            !lines[1].contains("vd") && lines[1].contains("null"),
            "{}",
            lines[1]
        );
        assert!(lines[1].ends_with(" 0"), "{}", lines[1]);
        assert_eq!(lines[2], "SigBlk:\t0000000000000000");
        assert_eq!(lines[3], "NoNewPrivs:\t1");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_command_is_said_in_a_sentence() {
    if let Some(lab) = labs() {
        for (command, sentence) in [
            (
                "nonesuch",
                "command \"nonesuch\" not found in the image; PATH is /bin",
            ),
            (
                "/bin/nonesuch",
                "command \"/bin/nonesuch\" does not exist in the image",
            ),
            (
                "plain",
                "command \"plain\" (/bin/plain) is not an executable file for user 0",
            ),
            (
                "script",
                "command \"/bin/script\" cannot be executed: its interpreter or dynamic loader /no/such/interpreter is not in the image",
            ),
            (
                "nonsense",
                "command \"/bin/nonsense\" is not a program this machine can run (wrong architecture, or a script without #!)",
            ),
        ] {
            let error = lab.run(ask(&[command])).await.err().unwrap();
            assert_eq!(error.to_string(), sentence);
            assert!(error.is_users());
        }
        let mut asked = ask(&["pwd"]);
        asked.cwd = Some("/nowhere".into());
        let error = lab.run(asked).await.err().unwrap();
        assert_eq!(
            error.to_string(),
            "working directory /nowhere does not exist in the container"
        );
        assert_clean(&lab);
    }
}

#[tokio::test]
async fn stop_asks_first_and_then_ends_everything() {
    if let Some(lab) = labs() {
        let polite = "trap 'exit 7' TERM; echo ready > /out/ready; while :; do sleep 0.05; done";
        let deaf =
            "trap '' TERM; setsid sleep 600 & echo ready > /out/ready; while :; do sleep 1; done";
        let (long, short) = (Duration::from_secs(600), Duration::from_millis(300));
        for (script, grace, expected) in [
            (polite, long, ExitStatus::Code(7)),
            (deaf, short, ExitStatus::Signal(9)),
        ] {
            let out = tempfile::tempdir_in(lab.dir.path()).unwrap();
            let mut asked = shell(script);
            asked.binds = vec![Bind {
                host: out.path().to_owned(),
                target: "/out".into(),
                writable: true,
            }];
            let (container, ..) = lab.create(asked).await.unwrap();
            container.start().await.unwrap();
            until("ready", || out.path().join("ready").exists()).await;
            let before = Instant::now();
            container.stop(grace).await.unwrap();
            assert_eq!(container.wait().await.unwrap().status, expected);
            assert!(before.elapsed() >= short || grace == long);
            assert!(before.elapsed() < Duration::from_secs(300));
            container.remove().await.unwrap();
        }
        // Who has no handler ends at once: its first process is Apptainer's own.
        let (container, ..) = lab.create(ask(&["sleep", "600"])).await.unwrap();
        container.start().await.unwrap();
        let before = Instant::now();
        container.stop(Duration::from_secs(600)).await.unwrap();
        assert!(before.elapsed() < Duration::from_secs(300));
        container.remove().await.unwrap();
        assert_clean(&lab);
    }
}

#[tokio::test]
async fn a_container_that_is_never_started_leaves_nothing() {
    if let Some(lab) = labs() {
        let (container, ..) = lab.create(ask(&["sleep", "600"])).await.unwrap();
        let pid = container.pid().unwrap();
        assert!(is_running(pid));
        container.remove().await.unwrap();
        assert!(!is_running(pid));
        assert_clean(&lab);
    }
}

#[tokio::test]
async fn a_container_whose_owner_is_gone_leaves_nothing() {
    if let Some(lab) = labs() {
        let (container, ..) = lab
            .create(shell("setsid sleep 600 & sleep 600"))
            .await
            .unwrap();
        container.start().await.unwrap();
        let pid = container.pid().unwrap();
        drop(container);
        until("its end", || !is_running(pid)).await;
        until("its traces", || {
            std::fs::read_dir(lab.dir.path().join("run"))
                .unwrap()
                .count()
                == 0
        })
        .await;
        assert_clean(&lab);
    }
}

fn parent(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("PPid:\t"));
    line.unwrap().parse().unwrap()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_container_whose_keeper_is_killed_is_killed_too_and_recovered() {
    if let Some(lab) = labs() {
        let mut asked = shell("setsid sleep 600 & sleep 600");
        asked.name = "zzzzz-dz642-recoverrecover0".into();
        let (container, ..) = lab.create(asked).await.unwrap();
        container.start().await.unwrap();
        let pid = container.pid().unwrap();
        kill(parent(pid));
        let error = container.wait().await.unwrap_err();
        assert!(matches!(error, EngineError::KeeperLost { .. }), "{error}");
        until("its end", || !is_running(pid)).await;
        let found = lab
            .engine
            .recover("zzzzz-dz642-recoverrecover0")
            .await
            .unwrap();
        assert!(!found.removed.is_empty());
        assert_clean(&lab);
        let again = lab
            .engine
            .recover("zzzzz-dz642-recoverrecover0")
            .await
            .unwrap();
        assert_eq!(again.removed, Vec::<String>::new());
    }
}

#[tokio::test]
async fn what_still_runs_of_an_earlier_attempt_is_ended_by_recover() {
    if let Some(lab) = labs() {
        let mut asked = shell("setsid sleep 600 & sleep 600");
        asked.name = "zzzzz-dz642-stillrunning000".into();
        let (container, ..) = lab.create(asked).await.unwrap();
        container.start().await.unwrap();
        let pid = container.pid().unwrap();
        let others = lab
            .engine
            .recover("zzzzz-dz642-anotheranother0")
            .await
            .unwrap();
        assert!(others.removed.is_empty() && is_running(pid));
        let found = lab
            .engine
            .recover("zzzzz-dz642-stillrunning000")
            .await
            .unwrap();
        assert!(!found.removed.is_empty());
        assert!(!is_running(pid));
        drop(container);
        assert_clean(&lab);
    }
}

#[tokio::test]
async fn limits_are_named() {
    if let Some(lab) = labs() {
        let limits = Limits {
            memory_bytes: Some(32 << 20),
            ..Limits::default()
        };
        let sentences = lab.engine.unenforceable(&limits, None).await;
        assert!(
            sentences[0]
                .sentence
                .contains("for the scheduler to limit: memory (33554432 bytes)"),
            "{sentences:?}"
        );
        assert_eq!(
            sentences
                .iter()
                .any(|s| s.sentence.contains("/proc and /sys")),
            is_root()
        );
    }
}

#[tokio::test]
async fn what_is_not_installed_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = crunch_run::image::ImageStore::open(dir.path()).unwrap();
    let engine = ApptainerEngine::new(store, Default::default(), Variant::Singularity);
    if which::which("singularity").is_err() {
        assert_eq!(
            engine.check().unwrap_err().to_string(),
            "the singularity engine cannot run containers here: singularity is not in PATH"
        );
    }
}
