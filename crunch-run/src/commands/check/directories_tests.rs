//! Directories as they should and should not be.

use std::os::unix::fs::PermissionsExt;

use super::*;
use preflight::Level;

fn good() -> DirectoryInfo {
    DirectoryInfo {
        path: "/c".into(),
        is_dir: Some(true),
        not_private: None,
        owner: 1,
        unwritable: None,
        read_only: false,
        no_exec: false,
        network: None,
        total: 100 << 30,
        free: 50 << 30,
        device: 7,
    }
}

/// A good one but for this.
fn with(change: impl Fn(&mut DirectoryInfo)) -> DirectoryInfo {
    let mut info = good();
    change(&mut info);
    info
}

fn denied(info: &mut DirectoryInfo) {
    info.unwritable = Some("Permission denied".to_owned());
}

#[test]
fn caches() {
    for (info, level, words) in [
        (good(), Level::Ok, "the same file system"),
        (with(|f| f.device = 8), Level::Ok, "another file system"),
        (
            with(|f| (f.is_dir, f.not_private) = (None, Some("missing".into()))),
            Level::Ok,
            "will be made",
        ),
        (
            with(|f| f.is_dir = Some(false)),
            Level::Fail,
            "not a directory",
        ),
        (with(denied), Level::Fail, "Permission denied"),
        (
            with(|f| {
                denied(f);
                f.read_only = true;
            }),
            Level::Fail,
            "read-only",
        ),
        (
            with(|f| (f.owner, f.not_private) = (0, Some("it belongs to user 0".into()))),
            Level::Fail,
            "it belongs to user 0 (/c is root's)",
        ),
        (with(|f| f.network = Some("NFS")), Level::Warn, "NFS"),
        (with(|f| f.free = 1 << 30), Level::Warn, "1.0 GiB free"),
    ] {
        let finding = evaluate_cache(&info, Limits::default(), 1, Some(7));
        assert_eq!(finding.level, level, "{finding:?}");
        assert!(finding.finding.contains(words), "{finding:?}");
        assert_eq!(finding.remedy.is_some(), level != Level::Ok);
    }
}

#[test]
fn scratch_directories() {
    for (info, level, words) in [
        (good(), Level::Ok, "50.0 GiB free"),
        // A world-writable directory like /tmp.
        (
            with(|f| (f.owner, f.not_private) = (0, Some("mode 1777".into()))),
            Level::Ok,
            "free",
        ),
        (with(denied), Level::Fail, "Permission denied"),
        (with(|f| f.no_exec = true), Level::Fail, "noexec"),
        (with(|f| f.network = Some("Lustre")), Level::Warn, "Lustre"),
        (with(|f| f.free = 5), Level::Warn, "5 B free"),
    ] {
        let finding = evaluate_scratch(&info);
        assert_eq!(finding.level, level, "{finding:?}");
        assert!(finding.finding.contains(words), "{finding:?}");
    }
}

#[test]
fn real_ones_are_looked_at_and_left_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("not/yet");
    let info = DirectoryInfo::of(&cache).unwrap();
    assert_eq!((info.is_dir, info.unwritable), (None, None));
    assert!(info.total >= info.free && info.total > 0);
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    assert_eq!(DirectoryInfo::of(&file).unwrap().is_dir, Some(false));
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("/nowhere", &link).unwrap();
    assert_eq!(DirectoryInfo::of(&link).unwrap().is_dir, Some(false));
    // What a run refuses.
    let own = dir.path().join("own");
    fs::create_dir(&own).unwrap();
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&own, &link).unwrap();
    assert_eq!(DirectoryInfo::of(&own).unwrap().not_private, None);
    let refused = DirectoryInfo::of(&link).unwrap().not_private.unwrap();
    assert!(refused.contains("is no directory"), "{refused}");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = DirectoryInfo::of(&own).unwrap().not_private.unwrap();
    assert!(refused.contains("mode 777"), "{refused}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}
