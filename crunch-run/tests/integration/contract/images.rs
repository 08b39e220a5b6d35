//! Images: a good image is fetched once; a broken one is reported to the user.

use std::path::Path;

use serde_json::json;

use crate::contract::lab::Lab;
use crate::engine_lab::{archive, busybox_archive, busybox_layer};
use tar::EntryType;

use crate::image_lab::{Tar, dir, docker_archive, entry, file, hex, layer, link};

/// An image that no other test uses, because engines keep images.
async fn new_image(lab: &Lab) -> String {
    let own = format!("OWN={:016x}", fastrand::u64(..));
    lab.image(json!({"Env": ["PATH=/bin", own], "Cmd": ["sh"]}))
        .await
}

pub async fn two_containers_begin_with_the_same_new_image(lab: &Lab) {
    let image = new_image(lab).await;
    let more = json!({"container_image": image});
    let script = "test -n \"$OWN\" && echo well";
    let (first, second) = tokio::join!(
        lab.sh_with(script, more.clone()),
        lab.sh_with(script, more.clone())
    );
    assert_eq!(first.stdout(), ["well"]);
    assert_eq!(second.stdout(), ["well"]);
}

pub async fn an_image_is_fetched_only_once(lab: &Lab) {
    let more = json!({"container_image": new_image(lab).await});
    assert_eq!(
        lab.sh_with("echo first", more.clone()).await.stdout(),
        ["first"]
    );
    // From here on the image cannot be fetched.
    assert!(remove_large_files(&lab.world.state().join("blocks")) > 0);
    assert_eq!(lab.sh_with("echo again", more).await.stdout(), ["again"]);
}

/// Who knows the ids of an image and of its layers gets nothing of it.
pub async fn an_image_on_the_node_is_for_those_who_have_its_content(lab: &Lab) {
    let secret = format!("{:016x}", fastrand::u64(..));
    let layers = [
        busybox_layer(),
        layer(|tar| file(tar, "secret", secret.as_bytes())),
    ];
    let (bytes, id) = archive(&layers, json!({"Env": ["PATH=/bin"]}));
    let cat = async |image: String| {
        let more = json!({"container_image": image});
        lab.run(&["cat", "/secret"], more).await
    };
    let private = lab.image_of(&bytes, &id).await;
    assert_eq!(cat(private).await.stdout(), [&*secret]);

    let named = lab.image_of(b"nothing but a name", &id).await;
    let why = cat(named).await;
    assert!(why.refusal().contains("neither a"), "{}", why.refusal());
    let digests = layers.each_ref().map(|layer| hex(layer));
    let (listing, id_of_listing) =
        docker_archive(&[busybox_layer(), b"garbage".to_vec()], &digests);
    let listing = lab.image_of(&listing, &id_of_listing).await;
    let why = cat(listing).await;
    let words = format!("layer sha256:{} ", digests[1]);
    assert!(why.refusal().contains(&words), "{}", why.refusal());
    assert!(why.refusal().contains("its digest"), "{}", why.refusal());

    let name = format!("{id}.tar");
    let files: [(&str, &[u8]); 2] = [(&name, &bytes), ("README", b"of another collection")];
    let other = lab.world.collection(&files).await.to_string();
    assert_eq!(cat(other).await.stdout(), [&*secret]);
}

/// Files that are opened before the container has started. One that is none is the image's fault.
pub async fn files_of_an_image_that_are_none_hold_up_nobody(lab: &Lab) {
    let outside = tempfile::tempdir().unwrap();
    let accounts = outside.path().join("accounts");
    std::fs::write(&accounts, "eve:x:4:4::/:\n").unwrap();
    let accounts = format!("../../../../../..{}", accounts.display());
    let huge = "x:x:7:7::/:\n".repeat(500_000);
    // path, user of the image, what is there
    let rows = [
        (
            "etc/passwd",
            "eve",
            &["fifo", "directory", "link out", "link loop", "huge"][..],
        ),
        // Runtimes look up the home of root there.
        ("etc/passwd", "", &["fifo", "device"]),
        (
            "etc/group",
            "0:eve",
            &["fifo", "device", "link out", "huge"],
        ),
        (
            "bin/tool",
            "",
            &["fifo", "device", "directory", "link loop", "huge"],
        ),
    ];
    let rows = rows
        .iter()
        .flat_map(|(path, user, kinds)| kinds.iter().map(move |kind| (*path, *user, *kind)));
    for (path, user, what) in rows {
        if what == "device" && lab.engine.is_nobodys() {
            // An ordinary user can have none in an image.
            continue;
        }
        let top = layer(|tar| match what {
            "fifo" => entry(tar, path, EntryType::Fifo, |_| {}),
            "device" => entry(tar, path, EntryType::Char, |header| {
                // /dev/zero
                header.set_device_major(1).unwrap();
                header.set_device_minor(5).unwrap();
            }),
            "directory" => dir(tar, path),
            "link out" => link(tar, path, &accounts),
            "link loop" => link(tar, path, path.rsplit_once('/').unwrap().1),
            _ => file(tar, path, huge.as_bytes()),
        });
        let config = json!({"Env": ["PATH=/bin"], "User": user});
        let (archive, id) = archive(&[busybox_layer(), top], config);
        let image = lab.image_of(&archive, &id).await;
        let command = if path == "bin/tool" { "tool" } else { "true" };
        let ended = lab.run(&[command], json!({"container_image": image})).await;
        if path == "bin/tool" && lab.engine.finds_bad_programs_late() {
            assert_ne!(ended.record.exit_code, Some(0), "{what}");
            continue;
        }
        let names_it = ended.refusal().contains(path) || ended.refusal().contains("tool");
        assert!(names_it, "{path} {what}: {}", ended.refusal());
    }
}

/// Files that C libraries read where somebody asks them for users, hosts or the time. Before the
/// container's command nobody does: a module that such a file names would run as this program.
pub async fn no_library_of_the_image_is_asked_before_its_command_runs(lab: &Lab) {
    let files = [
        "nsswitch.conf",
        "ld.so.cache",
        "ld.so.preload",
        "host.conf",
        "localtime",
    ];
    let top = layer(|tar| {
        for name in files {
            entry(tar, &format!("etc/{name}"), EntryType::Fifo, |_| {});
        }
    });
    let (archive, id) = archive(&[busybox_layer(), top], json!({"Env": ["PATH=/bin"]}));
    let image = lab.image_of(&archive, &id).await;
    let ended = lab.run(&["true"], json!({"container_image": image})).await;
    assert_eq!(ended.record.exit_code, Some(0), "{:?}", ended.record);
}

/// Removes the image, which is much larger than all other files of these tests.
fn remove_large_files(dir: &Path) -> usize {
    let mut removed = 0;
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let facts = entry.metadata().unwrap();
        if facts.is_dir() {
            removed += remove_large_files(&entry.path());
        } else if facts.len() > 500_000 {
            std::fs::remove_file(entry.path()).unwrap();
            removed += 1;
        }
    }
    removed
}

/// busybox with one more layer.
async fn image_with(lab: &Lab, build: impl FnOnce(&mut Tar)) -> String {
    let (archive, id) = archive(
        &[busybox_layer(), layer(build)],
        json!({"Env": ["PATH=/bin"]}),
    );
    lab.image_of(&archive, &id).await
}

/// As distributions with systemd have /etc/resolv.conf, and the same of a mount of the request.
pub async fn what_is_mounted_on_a_link_that_leads_nowhere_is_there(lab: &Lab) {
    let image = image_with(lab, |tar| {
        link(tar, "etc/resolv.conf", "../run/systemd/resolve/stub.conf");
        link(tar, "etc/hosts", "/run/not/there/hosts");
        link(tar, "data", "volumes/data");
    })
    .await;
    let more = json!({
        "container_image": image,
        "mounts": {
            "/out": {"kind": "tmp", "capacity": 1 << 20},
            "/data/note": {"kind": "text", "content": "of the request"},
        },
    });
    let script = "grep -c localhost /etc/hosts; cat /data/note";
    let ended = lab.sh_with(script, more.clone()).await;
    assert_eq!(ended.code(), 0, "{:?}", ended.stderr());
    assert_eq!(ended.stdout().last(), Some(&"of the request"));

    let mut more = more;
    more["runtime_constraints"] = json!({"vcpus": 1, "ram": 128 << 20, "API": true});
    let ended = lab.sh_with("cat /etc/resolv.conf", more).await;
    assert_eq!(ended.code(), 0, "{:?}", ended.stderr());
    let here = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers = |text: &str| text.matches("nameserver").count();
    assert_eq!(servers(&ended.stdout().join("\n")), servers(&here));
}

/// No other node has another image, so that none can do better.
pub async fn a_mount_that_the_image_has_no_place_for_is_refused_by_its_name(lab: &Lab) {
    let tmp = json!({"kind": "tmp", "capacity": 1 << 20});
    let text = json!({"kind": "text", "content": "x"});
    for (target, mount) in [
        ("/etc/passwd", &tmp),
        ("/bin/busybox", &tmp),
        ("/etc/passwd/deep", &text),
        ("/tmp", &text),
    ] {
        let mounts = json!({"/out": tmp, target: mount});
        let ended = lab.run(&["true"], json!({"mounts": mounts})).await;
        assert!(ended.refusal().contains(target), "{}", ended.refusal());
    }
    let more = json!({"mounts": {"/etc/passwd": tmp}, "output_path": "/etc/passwd"});
    let ended = lab.run(&["true"], more).await;
    assert!(
        ended.refusal().contains("/etc/passwd"),
        "{}",
        ended.refusal()
    );
}

pub async fn an_image_that_is_no_archive(lab: &Lab) {
    let id = format!("sha256:{:064x}", fastrand::u128(..));
    let image = lab.image_of(&[b'x'; 4096], &id).await;
    let ended = lab.run(&["true"], json!({"container_image": image})).await;
    let why = ended.refusal();
    assert!(
        why.contains("neither a docker-archive nor an OCI archive"),
        "{why}"
    );
    assert!(why.contains(&image), "{why}");
}

pub async fn an_image_archive_that_is_cut_short(lab: &Lab) {
    let own = format!("OWN={:016x}", fastrand::u64(..));
    let (archive, id) = busybox_archive(json!({"Env": ["PATH=/bin", own]}));
    let image = lab.image_of(&archive[..archive.len() / 2], &id).await;
    let ended = lab.run(&["true"], json!({"container_image": image})).await;
    let why = ended.refusal();
    assert!(why.contains(&image), "{why}");
}

pub async fn an_archive_of_another_image(lab: &Lab) {
    let (archive, _) = busybox_archive(json!({"Env": ["PATH=/bin"]}));
    let wanted = format!("sha256:{:064x}", fastrand::u128(..));
    let image = lab.image_of(&archive, &wanted).await;
    let ended = lab.run(&["true"], json!({"container_image": image})).await;
    let why = ended.refusal();
    assert!(why.contains(&wanted), "{why}");
    assert!(why.contains(&format!("is not in archive {image}")), "{why}");
}

pub async fn a_layer_that_is_not_what_its_digest_says(lab: &Lab) {
    // A layer of its own: what is in the node's cache already was checked.
    let own = format!("{:07x}", fastrand::u32(..1 << 28));
    let place_of = |bytes: &[u8], words: &[u8]| {
        bytes
            .windows(words.len())
            .position(|found| found == words)
            .unwrap()
    };
    let mut layer = busybox_layer();
    let at = place_of(&layer, b"not a program\n");
    layer[at..at + 7].copy_from_slice(own.as_bytes());
    let (mut archive, id) = archive(&[layer], json!({"Env": ["PATH=/bin"]}));
    let at = place_of(&archive, own.as_bytes());
    archive[at] ^= 1;
    let image = lab.image_of(&archive, &id).await;
    let ended = lab.run(&["true"], json!({"container_image": image})).await;
    let why = ended.refusal();
    assert!(why.contains(&image), "{why}");
}

pub async fn an_image_of_another_architecture(lab: &Lab) {
    // An ELF file for machine 243, RISC-V, which is not emulated here.
    let mut busybox = busybox_layer();
    let at = busybox
        .windows(4)
        .position(|bytes| bytes == b"\x7fELF")
        .unwrap();
    busybox[at + 18..at + 20].copy_from_slice(&243_u16.to_le_bytes());
    let config =
        json!({"Env": ["PATH=/bin"], "Labels": {"own": format!("{:x}", fastrand::u64(..))}});
    let (archive, id) = archive(&[busybox], config);
    let image = lab.image_of(&archive, &id).await;
    let ended = lab
        .run(
            &["/bin/sh", "-c", "true"],
            json!({"container_image": image}),
        )
        .await;
    crate::contract::ends::assert_is_named(lab, &ended, "/bin/sh");
}
