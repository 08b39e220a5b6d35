//! Claims and wants in a directory, of dispatchers that live or not.

use std::process::{Child, Command, Stdio};

use super::*;

fn job() -> (ContainerUuid, Reservation) {
    let reservation = Reservation {
        cpus: [1, 2].into(),
        ram: 100,
        ..Reservation::default()
    };
    (ContainerUuid::generate("zzzzz"), reservation)
}

fn process() -> Child {
    Command::new("cat").stdin(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_claim_counts_for_others_while_its_process_lives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("claims");
    let [ours, theirs] = ["ours", "theirs"].map(|name| MachineClaims::open(&path, name).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o1777);
    let (container, reservation) = job();
    let mut child = process();
    ours.publish(&container, &reservation, child.id());
    let owner = rustix::process::geteuid().as_raw();
    assert_eq!(theirs.others(), [HeldByOther { reservation, owner }]);
    assert_eq!(ours.others(), []);
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(theirs.others(), []);
}

#[test]
fn claims_of_jobs_that_are_gone_are_removed_and_missing_ones_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("claims");
    let [ours, theirs] = ["ours", "theirs"].map(|name| MachineClaims::open(&path, name).unwrap());
    let own = std::process::id();
    let ((first, reservation), (second, _)) = (job(), job());
    ours.publish(&first, &reservation, own);
    theirs.publish(&first, &reservation, own);
    ours.keep_only(&BTreeMap::from([(
        second.clone(),
        (reservation.clone(), own),
    )]));
    assert_eq!(theirs.others().len(), 1);
    assert_eq!(ours.others().len(), 1);
    assert!(path.join(format!("ours.{second}")).exists());
    assert!(!path.join(format!("ours.{first}")).exists());
}

#[test]
fn a_want_counts_for_others_as_long_as_it_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("claims");
    let [ours, theirs] = ["ours", "theirs"].map(|name| MachineClaims::open(&path, name).unwrap());
    let want = Want {
        cpus: 2,
        ram: 100,
        cuda: 0,
        rocm: 0,
        since: 7,
    };
    ours.set_want(Some(&want));
    assert_eq!(theirs.wants_of_others(), std::slice::from_ref(&want));
    assert_eq!(ours.wants_of_others(), []);
    assert_eq!(theirs.others(), []);
    ours.keep_only(&BTreeMap::new());
    assert_eq!(theirs.wants_of_others().len(), 1, "it is no claim");
    let old = std::time::SystemTime::now() - WANT_TTL;
    let file = File::open(path.join("ours.waits")).unwrap();
    file.set_modified(old).unwrap();
    assert_eq!(theirs.wants_of_others(), []);
    ours.set_want(Some(&want));
    ours.set_want(None);
    assert_eq!(theirs.wants_of_others(), []);
}

#[test]
fn what_is_no_claim_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("claims");
    let ours = MachineClaims::open(&path, "ours").unwrap();
    let (_, reservation) = job();
    let claim = |pid: u32, start_time: u64, boot_id: &str| Claim {
        process: ProcessIdentity {
            pid,
            start_time,
            boot_id: boot_id.to_owned(),
        },
        reservation: reservation.clone(),
    };
    let own = ProcessIdentity::of(std::process::id()).unwrap();
    for (name, claim) in [
        (
            "another-start",
            claim(own.pid, own.start_time + 1, &own.boot_id),
        ),
        ("another-boot", claim(own.pid, own.start_time, "x")),
        ("no-process", claim(u32::MAX, 1, &own.boot_id)),
    ] {
        std::fs::write(path.join(name), serde_json::to_vec(&claim).unwrap()).unwrap();
    }
    std::fs::write(path.join("text"), "{").unwrap();
    std::fs::create_dir(path.join("dir")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", path.join("link")).unwrap();
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        path.join("fifo"),
        Mode::from_raw_mode(0o666),
    )
    .unwrap();
    assert_eq!(ours.others(), []);
}

#[test]
fn who_locks_first_is_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("claims");
    let [ours, theirs] = ["ours", "theirs"].map(|name| MachineClaims::open(&path, name).unwrap());
    let held = ours.lock();
    assert!(held.is_some());
    let file = theirs.open_lock().unwrap();
    assert!(!lock::is_acquired(file.try_lock()).unwrap());
    drop(held);
    assert!(theirs.lock().is_some());
}

#[test]
fn a_link_in_the_place_of_the_directory_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("claims");
    std::os::unix::fs::symlink(dir.path(), &path).unwrap();
    assert!(MachineClaims::open(&path, "ours").is_err());
}

/// Everybody can name a process of another user, or of root.
#[test]
fn a_claim_for_a_process_of_another_user_does_not_count() {
    let own = ProcessIdentity::of(std::process::id()).unwrap();
    let uid = rustix::process::getuid().as_raw();
    assert!(is_alive(&own, uid));
    assert!(!is_alive(&own, uid + 1));
    let init = ProcessIdentity::of(1).unwrap();
    assert!(!is_alive(&init, 4242));
}

#[test]
fn one_owner_has_a_bounded_number_of_claims_and_each_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("claims");
    let [ours, theirs] = ["ours", "theirs"].map(|name| MachineClaims::open(&path, name).unwrap());
    let (_, reservation) = job();
    for _ in 0..MAX_CLAIMS_OF_OWNER + 10 {
        let container = ContainerUuid::generate("zzzzz");
        theirs.publish(&container, &reservation, std::process::id());
    }
    assert_eq!(ours.others().len(), MAX_CLAIMS_OF_OWNER);
    let known = ours.known.lock().clone();
    let (name, _) = known.first_key_value().unwrap();
    let file = path.join(name);
    // The same file with the same time is not read again; a changed one is.
    let modified = std::fs::metadata(&file).unwrap().modified().unwrap();
    let written = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    written.set_len(0).unwrap();
    written.set_modified(modified).unwrap();
    assert_eq!(ours.others().len(), MAX_CLAIMS_OF_OWNER);
    written.set_modified(std::time::SystemTime::now()).unwrap();
    assert_eq!(ours.others().len(), MAX_CLAIMS_OF_OWNER - 1);
}
