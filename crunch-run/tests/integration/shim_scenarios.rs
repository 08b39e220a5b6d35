//! Scenarios of engines that run a container below a shim: the same for each of them.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use container_engine::{Bind, EngineError, ExitStatus, Network};
use host_state::trash;

use crate::engine_lab::{Lab, exec, shell};

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Number of entries of a directory, without its trash.
pub fn entries(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| !trash::is_trash(&entry.file_name().to_string_lossy()))
        .count()
}

/// Checks that no container has left files or mounts in the lab's directory, and that its user can
/// empty the trash: the kernel closes the work directory of an overlay to its owner.
pub fn assert_clean(lab: &Lab) {
    let mut left = Vec::new();
    for scratch in std::fs::read_dir(lab.dir.path().join("scratch")).unwrap() {
        let scratch = scratch.unwrap().path();
        let emptied = trash::empty(&scratch, &mut || ControlFlow::Continue(()));
        assert!(emptied.unwrap().is_continue(), "{scratch:?}");
        let entries = std::fs::read_dir(&scratch).unwrap().flatten();
        left.extend(entries.map(|entry| entry.path()));
    }
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
    let deadline = Instant::now() + suite_tests::STEP_TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn parent(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("PPid:\t"));
    line.unwrap().parse().unwrap()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

pub async fn the_root_is_writable_and_the_image_stays_as_it_was(lab: &Lab) {
    let script =
        "echo new > /etc/new && rm /etc/group && mkdir /top && echo x >> /etc/passwd && ls /etc";
    let ended = lab.run(shell(script)).await.unwrap();
    assert_eq!(ended.stdout, "hosts\nnew\npasswd\n", "{}", ended.stderr);
    let ended = lab.run(shell("ls -d /etc/* /top")).await.unwrap();
    assert_eq!(ended.stdout, "/etc/group\n/etc/hosts\n/etc/passwd\n");
    assert_clean(lab);
}

pub async fn binds_are_writable_only_where_asked(lab: &Lab) {
    let host = lab.dir.path().join("host");
    std::fs::create_dir(&host).unwrap();
    std::fs::write(host.join("file"), "data").unwrap();
    let bind = |target: &str, writable| Bind {
        host: host.clone(),
        target: target.into(),
        writable,
    };
    let script = "cat /ro/file; echo no > /ro/file || echo refused; echo yes > /deep/er/new; cd /deep/er; pwd";
    let mut request = shell(script);
    request.binds = vec![bind("/ro", false), bind("/deep/er", true)];
    let ended = lab.run(request).await.unwrap();
    assert_eq!(ended.stdout, "datarefused\n/deep/er\n", "{}", ended.stderr);
    assert_eq!(std::fs::read_to_string(host.join("new")).unwrap(), "yes\n");
    let mut request = exec(&["pwd"]);
    request.binds = vec![bind("/deep/er", true)];
    request.cwd = Some("/deep/er".into());
    assert_eq!(lab.run(request).await.unwrap().stdout, "/deep/er\n");
}

pub async fn without_a_network_there_is_only_loopback(lab: &Lab) {
    let script = "ls /sys/class/net; ping -c 1 -W 60 127.0.0.1 >/dev/null && echo up; cat /etc/hosts | head -1";
    let ended = lab.run(shell(script)).await.unwrap();
    assert!(ended.stdout.starts_with("lo\n"), "{}", ended.stdout);
    assert!(
        ended.stdout.contains("127.0.0.1\tlocalhost"),
        "{}",
        ended.stdout
    );
    let mut request = shell(
        "cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' ' | sort; ls /sys/class/net | wc -l",
    );
    request.network = Network::Host;
    let ended = lab.run(request).await.unwrap();
    let names = std::fs::read_dir("/sys/class/net").unwrap().count();
    assert_eq!(
        ended.stdout.lines().count(),
        names + 1,
        "{}{}",
        ended.stdout,
        ended.stderr
    );
}

/// Returns the number of open files.
pub async fn the_container_sees_only_its_own_processes_and_no_device_of_the_node(
    lab: &Lab,
) -> String {
    let script = "ls /proc | grep -c '^[0-9]'; ls /dev | tr '\\n' ' '; dd if=/proc/kcore bs=1 count=1 2>/dev/null | wc -c; \
         grep -e NoNewPrivs -e SigBlk /proc/self/status; ls /proc/self/fd | wc -l";
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
    lines[4].trim().to_owned()
}

pub async fn what_is_wrong_with_a_command_is_said_in_a_sentence(lab: &Lab) {
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
        let error = lab.run(exec(&[command])).await.err().unwrap();
        assert_eq!(error.to_string(), sentence);
        assert!(error.is_user_error());
    }
    let mut request = exec(&["pwd"]);
    request.cwd = Some("/nowhere".into());
    let error = lab.run(request).await.err().unwrap();
    assert_eq!(
        error.to_string(),
        "working directory /nowhere does not exist in the container"
    );
    assert_clean(lab);
}

pub async fn stop_asks_first_and_then_ends_everything(lab: &Lab) {
    let polite = "trap 'exit 7' TERM; echo ready > /out/ready; while :; do sleep 0.05; done";
    let deaf =
        "trap '' TERM; setsid sleep 600 & echo ready > /out/ready; while :; do sleep 1; done";
    let (long, short) = (Duration::from_secs(600), Duration::from_millis(300));
    for (script, grace, expected) in [
        (polite, long, ExitStatus::Code(7)),
        (deaf, short, ExitStatus::Signal(9)),
    ] {
        let out = tempfile::tempdir_in(lab.dir.path()).unwrap();
        let mut request = shell(script);
        request.binds = vec![Bind {
            host: out.path().to_owned(),
            target: "/out".into(),
            writable: true,
        }];
        let (container, ..) = lab.create(request).await.unwrap();
        container.start().await.unwrap();
        until("ready", || out.path().join("ready").exists()).await;
        let before = Instant::now();
        container.stop(grace).await.unwrap();
        assert_eq!(container.wait().await.unwrap().status, expected);
        assert!(before.elapsed() >= short || grace == long);
        assert!(before.elapsed() < Duration::from_secs(300));
        container.remove().await.unwrap();
    }
    // A command without a TERM handler is killed at once.
    let (container, ..) = lab.create(exec(&["sleep", "600"])).await.unwrap();
    container.start().await.unwrap();
    let before = Instant::now();
    container.stop(Duration::from_secs(600)).await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(300));
    container.remove().await.unwrap();
    assert_clean(lab);
}

pub async fn a_container_that_is_never_started_leaves_nothing(lab: &Lab) {
    let (container, ..) = lab.create(exec(&["sleep", "600"])).await.unwrap();
    let pid = container.pid().unwrap();
    assert!(is_running(pid));
    container.remove().await.unwrap();
    assert!(!is_running(pid));
    assert_clean(lab);
}

pub async fn a_container_whose_owner_is_gone_leaves_nothing(lab: &Lab) {
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
    assert_clean(lab);
}

pub async fn a_container_whose_keeper_is_killed_is_killed_too_and_recovered(
    lab: &Lab,
    shim_of: impl Fn(u32) -> u32,
) {
    let request = shell("setsid sleep 600 & sleep 600");
    let name = request.name.clone();
    let (container, ..) = lab.create(request).await.unwrap();
    container.start().await.unwrap();
    let pid = container.pid().unwrap();
    kill(shim_of(pid));
    let error = container.wait().await.unwrap_err();
    assert!(matches!(error, EngineError::ShimLost { .. }), "{error}");
    until("its end", || !is_running(pid)).await;
    let found = lab.engine.recover(&name).await.unwrap();
    assert!(!found.removed.is_empty());
    assert_clean(lab);
    let again = lab.engine.recover(&name).await.unwrap();
    assert_eq!(again.removed, Vec::<String>::new());
}

pub async fn what_still_runs_of_an_earlier_attempt_is_ended_by_recover(lab: &Lab) {
    let request = shell("setsid sleep 600 & sleep 600");
    let name = request.name.clone();
    let (container, ..) = lab.create(request).await.unwrap();
    container.start().await.unwrap();
    let pid = container.pid().unwrap();
    let others = lab
        .engine
        .recover("zzzzz-dz642-anotheranother0")
        .await
        .unwrap();
    assert!(others.removed.is_empty() && is_running(pid));
    let found = lab.engine.recover(&name).await.unwrap();
    assert!(!found.removed.is_empty());
    // The kernel may reap its children yet.
    until("its end", || !is_running(pid)).await;
    drop(container);
    assert_clean(lab);
}
