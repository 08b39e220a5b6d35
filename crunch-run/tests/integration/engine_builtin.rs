//! Real containers of the built-in engine, as root, made from the node's static busybox.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Cursor;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cgroup::Cgroup;
use container_engine::builtin::{BuiltinEngine, Settings};
use container_engine::{
    Bind, Confinement, Container, ContainerSpec, Engine, EngineError, Exit, ExitStatus, Limits,
    Network, StartError, Stdio,
};
use node_cache::image::{Image, ImageStore};
use sha2::{Digest, Sha256};

use crate::engine_lab::expected_capabilities;
use crate::shim_scenarios;

const BUSYBOX: &str = "/bin/busybox";
const APPLETS: [&str; 9] = [
    "sh", "cat", "sleep", "id", "pwd", "env", "grep", "setsid", "dd",
];

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&Sha256::digest(bytes))
}

fn add(tar: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    tar.append_data(&mut header, path, content).unwrap();
}

fn busybox_archive() -> Vec<u8> {
    let mut layer = tar::Builder::new(Vec::new());
    add(
        &mut layer,
        "bin/busybox",
        0o755,
        &fs::read(BUSYBOX).unwrap(),
    );
    for applet in APPLETS {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        layer
            .append_link(&mut header, format!("bin/{applet}"), "busybox")
            .unwrap();
    }
    add(
        &mut layer,
        "etc/passwd",
        0o644,
        b"root:x:0:0::/root:/bin/sh\n",
    );
    add(&mut layer, "bin/plain", 0o644, b"not a program");
    add(&mut layer, "bin/lost", 0o755, b"#!/no/such/shell\n");
    let layer = layer.into_inner().unwrap();
    let config = serde_json::to_vec(&serde_json::json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin", "FROM=image"], "WorkingDir": "/made/by/image"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", hex(&layer))]},
    }))
    .unwrap();
    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, "config.json", 0o644, &config);
    add(&mut tar, "layer.tar", 0o644, &layer);
    add(
        &mut tar,
        "manifest.json",
        0o644,
        br#"[{"Config": "config.json", "RepoTags": ["busybox:test"], "Layers": ["layer.tar"]}]"#,
    );
    tar.into_inner().unwrap()
}

/// An engine, an image and directories for one container.
struct World {
    dir: tempfile::TempDir,
    engine: BuiltinEngine,
    image: Image,
    name: String,
}

fn world(name: &str) -> Option<World> {
    if !rustix::process::geteuid().is_root() || !PathBuf::from(BUSYBOX).exists() {
        suite_tests::skip(format_args!("this test needs root and {BUSYBOX}"));
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(&dir.path().join("cache")).unwrap();
    let image = store
        .load(&mut Cursor::new(busybox_archive()), "busybox.tar", None)
        .unwrap();
    let engine = BuiltinEngine::new(
        store,
        Settings {
            program: env!("CARGO_BIN_EXE_crunch-run").into(),
            run_dir: dir.path().join("run"),
            delegated_group: false,
            user_namespace: false,
        },
    );
    fs::create_dir(dir.path().join("scratch")).unwrap();
    engine.check().unwrap();
    Some(World {
        dir,
        engine,
        image,
        name: format!("test-{name}-{}", std::process::id()),
    })
}

impl World {
    fn spec(&self, command: &[&str]) -> ContainerSpec {
        let out = |name: &str| OwnedFd::from(File::create(self.dir.path().join(name)).unwrap());
        ContainerSpec {
            name: self.name.clone(),
            command: command.iter().map(|s| (*s).to_owned()).collect(),
            cwd: None,
            environment: BTreeMap::new(),
            binds: Vec::new(),
            network: Network::None,
            limits: Limits::default(),
            gpus: None,
            confinement: Confinement::default(),
            scratch: self.scratch(),
            stdio: Stdio {
                stdin: File::open("/dev/null").unwrap().into(),
                stdout: out("stdout"),
                stderr: out("stderr"),
            },
        }
    }

    async fn start(&self, spec: ContainerSpec) -> Result<Arc<dyn Container>, EngineError> {
        let container = self.engine.create(&self.image, spec).await?;
        container.start().await?;
        Ok(container)
    }

    async fn run(&self, spec: ContainerSpec) -> Exit {
        let container = self.start(spec).await.unwrap();
        let exit = container.wait().await.unwrap();
        let cgroup = container.cgroup().unwrap();
        assert!(cgroup.exists());
        container.remove().await.unwrap();
        self.assert_nothing_left(&cgroup);
        exit
    }

    fn scratch(&self) -> PathBuf {
        self.dir.path().join("scratch")
    }

    fn is_clean(&self) -> bool {
        shim_scenarios::entries(&self.scratch()) == 0
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap()
    }

    fn assert_nothing_left(&self, cgroup: &Cgroup) {
        assert!(!cgroup.exists(), "{cgroup:?}");
        assert!(self.is_clean());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(self.dir.path().to_str().unwrap()));
    }

    async fn refusal(&self, spec: ContainerSpec) -> StartError {
        match self.start(spec).await {
            Err(EngineError::Start(error)) => error,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it was started"),
        }
    }
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + suite_tests::STEP_TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn exit_codes_signals_and_streams_arrive() {
    let Some(world) = world("exit") else { return };
    let exit = world
        .run(world.spec(&["sh", "-c", "echo out; echo err >&2; exit 3"]))
        .await;
    assert_eq!(exit.status, ExitStatus::Code(3));
    assert!(!exit.oom_killed);
    assert_eq!(
        (world.read("stdout"), world.read("stderr")),
        ("out\n".into(), "err\n".into())
    );

    let container = world.start(world.spec(&["sleep", "600"])).await.unwrap();
    let pid = rustix::process::Pid::from_raw(container.pid().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let exit = container.wait().await.unwrap();
    assert_eq!(exit.status, ExitStatus::Signal(9));
    assert_eq!(exit.status.code(), 137);
    // A KILL is not an out-of-memory kill.
    assert!(!exit.oom_killed);
    container.remove().await.unwrap();
}

#[tokio::test]
async fn the_command_sees_its_own_world_only() {
    let Some(world) = world("world") else { return };
    fs::write(world.dir.path().join("input"), "data").unwrap();
    let script = "pwd; env | grep -v -e HOME -e HOSTNAME -e SHLVL -e PWD | sort; cat /in; echo x > /in || echo read-only; \
         cat /proc/self/status | grep -e NoNewPrivs -e CapEff -e SigBlk; grep -c : /proc/net/dev; ls /proc | grep -c '^[0-9]'; \
         dd if=/proc/kcore bs=1 count=1 2>/dev/null | wc -c";
    let mut spec = world.spec(&["/bin/busybox", "sh", "-c", script]);
    spec.environment = BTreeMap::from([("MINE".into(), "1".into())]);
    spec.binds = vec![Bind {
        host: world.dir.path().join("input"),
        target: "/in".into(),
        writable: false,
    }];
    assert_eq!(
        world.run(spec).await.status,
        ExitStatus::Code(0),
        "{}",
        world.read("stderr")
    );
    let out = world.read("stdout");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines[..5],
        [
            "/made/by/image",
            "FROM=image",
            "MINE=1",
            "PATH=/bin",
            "dataread-only"
        ]
    );
    let capabilities = format!("CapEff:\t{:016x}", expected_capabilities());
    // No signal is blocked in the command.
    assert_eq!(
        lines[5..8],
        ["SigBlk:\t0000000000000000", &capabilities, "NoNewPrivs:\t1",],
        "{out}"
    );
    assert_eq!(
        fs::read_to_string(world.dir.path().join("input")).unwrap(),
        "data"
    );
    assert_eq!(lines.last(), Some(&"0"), "{out}");
}

#[tokio::test]
async fn too_much_memory_is_told_from_the_control_group() {
    let Some(world) = world("memory") else { return };
    let mut spec = world.spec(&[
        "sh",
        "-c",
        "dd if=/dev/zero of=/dev/null bs=200M count=1; exit 5",
    ]);
    spec.limits.memory_bytes = Some(32 << 20);
    let exit = world.run(spec).await;
    // The shell survives and exits with 5, although the kernel killed its child.
    assert_eq!(exit.status, ExitStatus::Code(5));
    assert!(exit.oom_killed, "{exit:?}");
    assert!(exit.oom_kills >= 1);
    assert!(
        exit.peak_memory
            .is_some_and(|peak| peak > (16 << 20) && peak <= (32 << 20))
    );
}

#[tokio::test]
async fn stop_asks_first_and_then_ends_everything() {
    let Some(world) = world("stop") else { return };
    let polite = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let container = world
        .start(world.spec(&["sh", "-c", polite]))
        .await
        .unwrap();
    until("ready", || world.read("stdout") == "ready\n").await;
    container.stop(Duration::from_secs(600)).await.unwrap();
    assert_eq!(container.wait().await.unwrap().status, ExitStatus::Code(7));
    container.remove().await.unwrap();

    let deaf = "trap '' TERM; setsid sleep 600 & echo ready; while :; do sleep 1; done";
    let container = world.start(world.spec(&["sh", "-c", deaf])).await.unwrap();
    until("ready", || world.read("stdout") == "ready\n").await;
    let before = Instant::now();
    container.stop(Duration::from_millis(300)).await.unwrap();
    assert!(before.elapsed() >= Duration::from_millis(300));
    assert!(before.elapsed() < Duration::from_secs(60));
    assert_eq!(container.cgroup().unwrap().processes(), Vec::<u32>::new());
    assert_eq!(
        container.wait().await.unwrap().status,
        ExitStatus::Signal(9)
    );
    container.remove().await.unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_a_command_is_said_in_a_sentence() {
    let Some(world) = world("refuse") else { return };
    let cases = [
        (
            vec!["nonesuch"],
            "command \"nonesuch\" not found in the image; PATH is /bin",
        ),
        (
            vec!["/bin/nonesuch"],
            "command \"/bin/nonesuch\" does not exist in the image",
        ),
        (
            vec!["plain"],
            "command \"plain\" (/bin/plain) is not an executable file for user 0",
        ),
        (
            vec!["lost"],
            "command \"/bin/lost\" cannot be executed: its interpreter or dynamic loader /no/such/shell is not in the image",
        ),
        (
            vec![],
            "no command was given and the image has neither ENTRYPOINT nor CMD",
        ),
    ];
    for (command, sentence) in cases {
        let error = world.refusal(world.spec(&command)).await;
        assert_eq!(error.to_string(), sentence);
        until("cleaned up", || world.is_clean()).await;
    }
    let mut spec = world.spec(&["pwd"]);
    spec.cwd = Some("/nowhere".into());
    assert_eq!(
        world.refusal(spec).await.to_string(),
        "working directory /nowhere does not exist in the container"
    );
}

#[tokio::test]
async fn a_container_whose_owner_is_gone_leaves_nothing() {
    let Some(world) = world("orphan") else { return };
    let container = world.start(world.spec(&["sleep", "600"])).await.unwrap();
    let cgroup = container.cgroup().unwrap();
    assert_eq!(cgroup.processes().len(), 1);
    // The socket closes, as it does when its owner is killed.
    drop(container);
    until("nothing left", || !cgroup.exists() && world.is_clean()).await;
    world.assert_nothing_left(&cgroup);
}

#[tokio::test]
async fn a_container_whose_keeper_is_killed_is_killed_too() {
    let Some(world) = world("keeper") else { return };
    let container = world.start(world.spec(&["sleep", "600"])).await.unwrap();
    let cgroup = container.cgroup().unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", container.pid().unwrap())).unwrap();
    let keeper = status
        .lines()
        .find_map(|l| l.strip_prefix("PPid:\t"))
        .unwrap();
    let keeper = rustix::process::Pid::from_raw(keeper.parse().unwrap()).unwrap();
    rustix::process::kill_process(keeper, rustix::process::Signal::KILL).unwrap();
    let error = container.wait().await.unwrap_err();
    assert!(matches!(error, EngineError::ShimLost { .. }), "{error}");
    assert!(!cgroup.exists());
    // Its note goes, too.
    let run_dir = world.dir.path().join("run");
    assert_eq!(fs::read_dir(&run_dir).unwrap().count(), 1);
    container.remove().await.unwrap();
    assert_eq!(fs::read_dir(&run_dir).unwrap().count(), 0);
    world.assert_nothing_left(&cgroup);
}
