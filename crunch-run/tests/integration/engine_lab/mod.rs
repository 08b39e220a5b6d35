//! A busybox image, and containers from it in three lines. Needs root.

// Benchmarks use a part of this.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use container_engine::builtin::{BuiltinEngine, Settings};
use container_engine::{
    Bind, Confinement, Container, ContainerSpec, Engine, EngineError, Exit, ExitStatus, Limits,
    Network, Stdio,
};
use node_cache::image::{Archive, Image, ImageSource, ImageStore};
use sha2::{Digest, Sha256};

static NUMBER: AtomicU32 = AtomicU32::new(0);

pub struct Lab {
    pub dir: tempfile::TempDir,
    pub engine: Box<dyn Engine>,
    pub image: Image,
}

pub struct Ended {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn code(&self) -> i32 {
        match self.exit.status {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal(signal) => panic!("ended by signal {signal}: {}", self.stderr),
        }
    }
}

/// Settings of a test's container besides the command.
pub struct Request {
    pub command: Vec<String>,
    pub cwd: Option<String>,
    pub environment: BTreeMap<String, String>,
    pub binds: Vec<Bind>,
    pub network: Network,
    pub limits: Limits,
    pub gpus: Option<container_engine::gpu::GpuAccess>,
    pub name: String,
}

/// A name that no other test uses: control groups and runtimes know a container by its name alone.
pub fn unique_name() -> String {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("zzzzz-dz642-t{:07}{number:07}", std::process::id())
}

pub fn exec(command: &[&str]) -> Request {
    Request {
        command: command.iter().map(|s| (*s).to_owned()).collect(),
        cwd: None,
        environment: BTreeMap::new(),
        binds: Vec::new(),
        network: Network::None,
        limits: Limits::default(),
        gpus: None,
        name: unique_name(),
    }
}

pub fn shell(script: &str) -> Request {
    exec(&["sh", "-c", script])
}

impl Lab {
    pub fn new() -> Self {
        Self::with_config(serde_json::json!({"Env": ["PATH=/bin"], "Cmd": ["sh"]}))
    }

    pub fn with_config(config: serde_json::Value) -> Self {
        Self::in_dir(tempfile::tempdir().unwrap(), config)
    }

    pub fn in_dir(dir: tempfile::TempDir, config: serde_json::Value) -> Self {
        let run_dir = dir.path().join("run");
        Self::build(dir, run_dir, config)
    }

    /// Knows the containers of another laboratory.
    pub fn in_dir_with_run(dir: tempfile::TempDir, run_dir: &Path) -> Self {
        Self::build(
            dir,
            run_dir.to_owned(),
            serde_json::json!({"Env": ["PATH=/bin"]}),
        )
    }

    fn build(dir: tempfile::TempDir, run_dir: PathBuf, config: serde_json::Value) -> Self {
        Self::of(dir, run_dir, config, |store, settings| {
            Box::new(BuiltinEngine::new(store, settings))
        })
    }

    /// A lab with any engine that takes its images from the store.
    pub fn of(
        dir: tempfile::TempDir,
        run_dir: PathBuf,
        config: serde_json::Value,
        engine: impl FnOnce(ImageStore, Settings) -> Box<dyn Engine>,
    ) -> Self {
        let store = ImageStore::open(&dir.path().join("cache")).unwrap();
        let (archive, id) = busybox_archive(config);
        let image = store
            .prepare(ImageSource {
                id: Some(id),
                content: "busybox".into(),
                label: "busybox".into(),
                open: Box::new(move || Ok(Box::new(Cursor::new(archive)) as Box<dyn Archive>)),
            })
            .unwrap();
        let settings = Settings {
            program: std::env::var_os("TEST_CRUNCH_RUN")
                .map_or_else(|| env!("CARGO_BIN_EXE_crunch-run").into(), PathBuf::from),
            run_dir,
            delegated_group: false,
            user_namespace: false,
        };
        let engine = engine(store, settings);
        engine
            .check()
            .expect("these tests need a machine on which the engine works, most of them also root");
        Self { dir, engine, image }
    }

    pub fn scratch(&self, name: &str) -> PathBuf {
        let scratch = self.dir.path().join("scratch").join(name);
        fs::create_dir_all(&scratch).unwrap();
        scratch
    }

    pub async fn create(
        &self,
        request: Request,
    ) -> Result<(Arc<dyn Container>, Output, Output), EngineError> {
        let (stdout, stdout_end) = output();
        let (stderr, stderr_end) = output();
        let spec = ContainerSpec {
            scratch: self.scratch(&request.name),
            name: request.name,
            command: request.command,
            cwd: request.cwd,
            environment: request.environment,
            binds: request.binds,
            network: request.network,
            limits: request.limits,
            gpus: request.gpus,
            confinement: Confinement::default(),
            stdio: Stdio {
                stdin: fs::File::open("/dev/null").unwrap().into(),
                stdout: stdout_end,
                stderr: stderr_end,
            },
        };
        let container = self.engine.create(&self.image, spec).await?;
        Ok((container, stdout, stderr))
    }

    pub async fn run(&self, request: Request) -> Result<Ended, EngineError> {
        let (container, stdout, stderr) = self.create(request).await?;
        if let Err(error) = container.start().await {
            container.remove().await?;
            return Err(error);
        }
        let exit = tokio::time::timeout(suite_tests::STEP_TIMEOUT, container.wait())
            .await
            .expect("the container ends within a minute")?;
        let group = container.cgroup();
        container.remove().await?;
        assert!(
            group.as_ref().is_none_or(|group| !group.exists()),
            "{group:?} is still there"
        );
        Ok(Ended {
            exit,
            stdout: stdout.text(),
            stderr: stderr.text(),
        })
    }
}

/// The name that the test program knows a module's tests by, from the module's `module_path!()`.
pub fn test_prefix(module_path: &str) -> &str {
    module_path
        .split_once("::")
        .map_or("", |(_, module)| module)
}

/// Runs the tests of a module once more, as an ordinary user.
pub fn again_as_nobody(module_path: &str, except: &str) {
    use std::os::unix::fs::PermissionsExt;
    // Other users may be unable to read the directories of busybox and crunch-run.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (tests, program) = (dir.path().join("tests"), dir.path().join("crunch-run"));
    // Another process copies the programs: a file that this process writes may be busy ("text file
    // busy") while another thread forks.
    for (from, to) in [
        (std::env::current_exe().unwrap(), &tests),
        (env!("CARGO_BIN_EXE_crunch-run").into(), &program),
    ] {
        assert!(
            Command::new("cp")
                .arg(from)
                .arg(to)
                .status()
                .unwrap()
                .success()
        );
    }
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&tests)
        .args([test_prefix(module_path), "--skip", except])
        .env("TEST_CRUNCH_RUN", &program)
        .env("TMPDIR", "/tmp")
        .current_dir("/")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    println!("{text}");
}

pub struct Output(std::thread::JoinHandle<String>);

impl Output {
    pub fn text(self) -> String {
        self.0.join().unwrap()
    }
}

fn output() -> (Output, OwnedFd) {
    let (reading, writing) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        fs::File::from(reading).read_to_string(&mut text).unwrap();
        text
    });
    (Output(reader), writing)
}

pub fn busybox_archive(config: serde_json::Value) -> (Vec<u8>, String) {
    archive(&[busybox_layer()], config)
}

/// The applets that tests run. All 269 of Debian's would be most of what unpacking the image takes.
const APPLETS: &str = "[ awk basename cat chmod chown clear cmp cp cut date dd df dirname echo env
    fallocate false find free grep gzip head hostname id ip kill ln ls md5sum mkdir mkfifo mknod
    mount mv nc nproc ping printf ps pwd readlink realpath rm rmdir route seq setpriv setsid sh
    sha256sum sleep sort stat sync tail tar test timeout touch tr true truncate tty umount uname
    unshare wc wget who whoami xargs yes";

pub fn busybox_layer() -> Vec<u8> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .find(|p| Path::new(p).exists())
        .expect("these tests need busybox-static");
    let mut layer = tar::Builder::new(Vec::new());
    for (dir, mode) in [
        ("bin", 0o755),
        ("etc", 0o755),
        ("tmp", 0o1777),
        ("root", 0o700),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        header.set_mode(mode);
        layer.append_data(&mut header, dir, &[][..]).unwrap();
    }
    let mut file = |path: &str, mode: u32, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        layer.append_data(&mut header, path, content).unwrap();
    };
    file("bin/busybox", 0o4755, &fs::read(busybox).unwrap());
    file(
        "etc/passwd",
        0o644,
        b"root:x:0:0:root:/root:/bin/sh\nann:x:1000:100::/home/ann:/bin/sh\n",
    );
    file(
        "etc/group",
        0o644,
        b"root:x:0:\nusers:x:100:\nwheel:x:10:ann\n",
    );
    file("bin/plain", 0o644, b"not a program\n");
    file("bin/nonsense", 0o755, b"\x01\x02 not a program\n");
    file("bin/script", 0o755, b"#!/no/such/interpreter\n");
    for applet in APPLETS.split_whitespace() {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        layer
            .append_link(&mut header, format!("bin/{applet}"), "busybox")
            .unwrap();
    }
    layer.into_inner().unwrap()
}

/// A docker-archive, and the image's id.
pub fn archive(layers: &[Vec<u8>], config: serde_json::Value) -> (Vec<u8>, String) {
    let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(&Sha256::digest(bytes));
    let diff_ids: Vec<String> = layers
        .iter()
        .map(|l| format!("sha256:{}", hex(l)))
        .collect();
    let config = serde_json::to_vec(&serde_json::json!({
        "architecture": "amd64", "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }))
    .unwrap();
    let id = hex(&config);
    let names: Vec<String> = (0..layers.len())
        .map(|n| format!("{n}/layer.tar"))
        .collect();
    let manifest = serde_json::to_vec(&serde_json::json!([
        {"Config": format!("{id}.json"), "RepoTags": ["busybox:test"], "Layers": names}
    ]))
    .unwrap();
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |name: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, content).unwrap();
    };
    add(&format!("{id}.json"), &config);
    for (name, layer) in names.iter().zip(layers) {
        add(name, layer);
    }
    add("manifest.json", &manifest);
    (tar.into_inner().unwrap(), format!("sha256:{id}"))
}

/// The capabilities of root in a container, less what this process lacks.
pub fn expected_capabilities() -> u64 {
    let of_every_container = 0x8004_05fb;
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("CapBnd:\t"));
    of_every_container & u64::from_str_radix(own.unwrap(), 16).unwrap()
}
