//! Users of the node that the users of root's containers are.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::contract::engines::Engine;
use crate::contract::lab::{Ended, Lab, until_counted, with_go};
use crate::engine_lab::{archive, busybox_layer};
use crate::image_lab;
use crate::run_lab::go_on;
use crate::run_lab::wrapper::started_by;

/// The user of the node that the log names as the container's root.
fn root_in_log(ended: &Ended) -> Option<u32> {
    let words = "The container's root is user ";
    let line = ended
        .story()
        .into_iter()
        .find(|line| line.contains(words))?;
    let rest = line.split_once(words)?.1;
    rest.strip_suffix(" of this node.")?.parse().ok()
}

pub async fn users_of_root_s_containers_are_nobody_else_on_the_node(lab: &Lab) {
    let ended = lab.sh("cat /proc/self/uid_map /proc/self/gid_map").await;
    let root = root_in_log(&ended).unwrap_or_else(|| panic!("{:?}", ended.story()));
    assert!(root > 2_000_200_000 && root < 0x7FFE_0000, "{root}");
    let maps = ended.stdout();
    let first: Vec<_> = maps[0].split_whitespace().collect();
    assert_eq!(first, ["0", &root.to_string(), "65536"]);
    assert_eq!(maps[..2], maps[2..]);
}

pub async fn the_node_sees_its_processes_as_those_of_the_mapped_user(lab: &Lab) {
    let script = "until [ -e /go/on ]; do sleep 0.05; done";
    let (job, child) = lab
        .start(&["sh", "-c", script], with_go(json!({})), &[])
        .await;
    until_counted(&lab.world, &job, 1).await;
    let users: BTreeSet<u32> = users_in_groups_of(job.uuid.as_str());
    go_on(&job);
    let ended = lab.end(job, child).await;
    assert_eq!(users, BTreeSet::from([root_in_log(&ended).unwrap()]));
}

/// The users of all processes in control groups with this name.
fn users_in_groups_of(name: &str) -> BTreeSet<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let of_process = |entry: fs::DirEntry| {
        let groups = fs::read_to_string(entry.path().join("cgroup")).ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        let user = users.split_whitespace().next()?.parse().ok()?;
        groups.contains(name).then_some(user)
    };
    processes.filter_map(of_process).collect()
}

pub async fn the_container_s_root_has_its_rights_on_its_own_files(lab: &Lab) {
    let script = "set -e; echo $(id -u) >/out/id; \
                  mkdir /new /deep/more /out/dir; echo x >/new/file; echo y >/deep/file; \
                  chown 1000:1000 /new/file; chown 70000 /new; stat -c %u /new /new/file; \
                  chown 1000 /out/dir; stat -c %u /out/dir /out /etc /bin/sh; \
                  echo streams >/dev/stdout; echo z >/dev/null; test -w /dev/shm; \
                  chmod 700 /out/dir; cat /given/file";
    let given = lab.world.collection(&[("file", b"given")]).await;
    let mounts = json!({"mounts": {
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "/deep/mount": {"kind": "tmp", "capacity": 1 << 20},
        "/given": {"kind": "collection", "portable_data_hash": given},
    }});
    let ended = lab.sh_with(script, mounts).await;
    let (stdout, last) = (ended.stdout(), ["streams", "given"]);
    assert_eq!(stdout[..2], ["70000", "1000"]);
    assert_eq!(stdout[2..6], ["1000", "0", "0", "0"]);
    assert_eq!(stdout[6..], last);
    assert!(
        ended
            .output
            .iter()
            .any(|(path, text)| path == "id" && text == "0\n")
    );
}

pub async fn streams_that_are_files_can_be_opened_by_name(lab: &Lab) {
    let given = lab.world.collection(&[("file", b"given")]).await;
    let collection = json!({"kind": "collection", "portable_data_hash": given, "path": "file"});
    let text = json!({"kind": "text", "content": "given"});
    for stdin in [collection, text] {
        streams_are_opened(lab, stdin).await;
    }
}

async fn streams_are_opened(lab: &Lab, stdin: Value) {
    let mounts = json!({"mounts": {
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "stdin": stdin,
        "stdout": {"kind": "file", "path": "/out/stdout"},
        "stderr": {"kind": "file", "path": "/out/stderr"},
    }});
    let script = "cat /dev/stdin >>/dev/stdout; echo error >>/dev/stderr";
    let ended = lab.sh_with(script, mounts).await;
    assert_eq!(ended.code(), 0, "{:?}", ended.output);
    let files = [("stderr", "error\n"), ("stdout", "given")];
    let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
    assert_eq!(ended.output, files);
}

pub async fn a_port_below_1024_is_open_on_its_own_network(lab: &Lab) {
    let script = "nc -l -p 80 </dev/null & for n in $(seq 100); do \
                  grep -q ':0050 .* 0A ' /proc/net/tcp* && echo listens && break; sleep 0.1; done; \
                  kill $!";
    assert_eq!(lab.sh(script).await.stdout(), ["listens"]);
}

pub async fn the_switch_for_users_of_its_own_is_heard(lab: &Lab) {
    let command = ["cat", "/proc/self/uid_map"];
    let (job, child) = lab.start(&command, json!({}), &["--userns=off"]).await;
    let ended = lab.end(job, child).await;
    assert_eq!(root_in_log(&ended), None);
    let here = fs::read_to_string("/proc/self/uid_map").unwrap();
    assert_eq!(ended.stdout()[0], here.lines().next().unwrap());
}

/// As in images that people with an account of a directory service make.
pub async fn an_image_may_have_files_of_any_user(lab: &Lab) {
    let large = 1_234_567;
    let layer = image_lab::layer(|tar| {
        image_lab::entry(tar, "secret", tar::EntryType::Regular, |header| {
            header.set_uid(large);
            header.set_gid(large);
            header.set_mode(0o600);
        });
    });
    let config = json!({"Env": ["PATH=/bin"]});
    let as_user = json!({"Env": ["PATH=/bin"], "User": format!("{large}:{large}")});
    let too_large = json!({"Env": ["PATH=/bin"], "User": "4000000000"});
    // runc has no such users.
    if lab.engine != Engine::Runc {
        let image = lab.image(too_large).await;
        let ended = lab
            .sh_with("id -u", json!({"container_image": image}))
            .await;
        assert_eq!(root_in_log(&ended), None);
        assert_eq!(ended.stdout(), ["4000000000"]);
    }
    for (config, id) in [(config, "0"), (as_user, "1234567")] {
        let (archive, image) = archive(&[busybox_layer(), layer.clone()], config);
        let image = lab.image_of(&archive, &image).await;
        let script = "cat /secret && echo new >>/secret && stat -c %u:%g /secret; id -u";
        let ended = lab.sh_with(script, json!({"container_image": image})).await;
        assert!(root_in_log(&ended).is_some());
        assert_eq!(ended.stdout(), ["1234567:1234567", id]);
    }
}

pub async fn a_file_system_that_cannot_map_owners_is_named(lab: &Lab) {
    let scratch = FileSystemWithoutMaps::new();
    let flag = format!("--scratch-dir={}", scratch.path().display());
    let (job, child) = lab
        .start(&["cat", "/proc/self/uid_map"], json!({}), &[&flag])
        .await;
    let ended = lab.end(job, child).await;
    assert_eq!(root_in_log(&ended), None);
    let is_named = |line: &&str| {
        line.contains("the container's users are those of this node")
            && line.contains(scratch.path().to_str().unwrap())
            && line.contains("cannot be mapped")
    };
    assert!(ended.story().iter().any(is_named), "{:?}", ended.story());
    let here = fs::read_to_string("/proc/self/uid_map").unwrap();
    assert_eq!(ended.stdout()[0], here.lines().next().unwrap());
}

/// Runs crunch-run after a script that mounts something for it alone.
async fn root_with_mounts(lab: &Lab, script: &str, command: &str, flags: &[&str]) -> Ended {
    let given = lab.world.collection(&[("file", b"given")]).await;
    let mounts = json!({"mounts": {
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "/given": {"kind": "collection", "portable_data_hash": given},
    }});
    let job = lab.world.lock(&["sh", "-c", command], mounts).await;
    let program = lab.program(&job, flags);
    let script = format!("{script} && exec \"$@\"");
    let mut outer = started_by(&["unshare", "-m", "sh", "-c", &script, "sh"], &program);
    let child = outer.spawn().unwrap();
    lab.end(job, child).await
}

/// As in a container, where a new /proc would show what the old one hides.
pub async fn a_part_of_proc_may_be_hidden(lab: &Lab) {
    let script = "mount -t tmpfs tmpfs /proc/irq";
    let ended = root_with_mounts(lab, script, "ls /proc/self/ns/user", &[]).await;
    assert!(root_in_log(&ended).is_some(), "{:?}", ended.story());
    assert_eq!(ended.stdout(), ["/proc/self/ns/user"]);
}

pub async fn scratch_may_be_mounted_with_any_options(lab: &Lab) {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().display();
    let script = format!("mount -t tmpfs -o nosuid,noexec,nodev,noatime tmpfs {dir}");
    let flag = format!("--scratch-dir={dir}");
    let command = "echo new >/out/file && cat /given/file /out/file";
    let ended = root_with_mounts(lab, &script, command, &[&flag]).await;
    assert!(root_in_log(&ended).is_some(), "{:?}", ended.story());
    assert_eq!(ended.stdout(), ["givennew"]);
}

/// An overlay: it takes layers with mapped owners, and cannot itself be one.
struct FileSystemWithoutMaps(tempfile::TempDir);

impl FileSystemWithoutMaps {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["lower", "upper", "work", "merged"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let at = |name: &str| dir.path().join(name).display().to_string();
        let (lower, upper, work) = (at("lower"), at("upper"), at("work"));
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("overlay", at("merged"), "overlay", flags, &*options).unwrap();
        Self(dir)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("merged")
    }
}

impl Drop for FileSystemWithoutMaps {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH);
    }
}
