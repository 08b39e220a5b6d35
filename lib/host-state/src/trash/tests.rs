//! Tests of the trash: what is moved there, emptied, and left alone.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn go_on() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn a_discarded_tree_is_gone_at_once_and_its_files_later() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("job");
    fs::create_dir_all(dir.join("a/b")).unwrap();
    for n in 0..1000 {
        fs::write(dir.join(format!("a/{n}")), "x").unwrap();
    }
    // As deep as a program can make it by its working directory.
    let mut deep = dir.join("a/b");
    for _ in 0..40 {
        deep.push("d".repeat(50));
        fs::create_dir(&deep).unwrap();
    }
    std::os::unix::fs::symlink("/", dir.join("root")).unwrap();
    fs::set_permissions(dir.join("a"), fs::Permissions::from_mode(0o000)).unwrap();
    discard(&dir).unwrap();
    discard(&dir).unwrap();
    assert!(!dir.exists() && !is_empty(top.path()));
    let name = content(top.path())[0].file_name().unwrap().to_owned();
    assert!(name.to_str().unwrap().starts_with("job~"));
    // It ends early and goes on.
    let mut calls = 0;
    let mut twice = || {
        calls += 1;
        match calls {
            2 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    };
    assert!(empty(top.path(), &mut twice).unwrap().is_break());
    assert!(!is_empty(top.path()));
    assert!(empty(top.path(), &mut go_on).unwrap().is_continue());
    assert!(is_empty(top.path()));
    assert_eq!(fs::read_dir(top.path()).unwrap().count(), 0);
}

#[test]
fn a_trash_of_another_is_not_used() {
    let top = tempfile::tempdir().unwrap();
    let (elsewhere, dir) = (top.path().join("elsewhere"), top.path().join("job"));
    fs::create_dir_all(elsewhere.join("precious")).unwrap();
    fs::create_dir_all(dir.join("x")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, trash_in(top.path())).unwrap();
    discard(&dir).unwrap();
    assert!(empty(top.path(), &mut go_on).unwrap().is_continue());
    assert!(!dir.exists() && elsewhere.join("precious").exists());
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1);
}

#[test]
fn a_directory_that_becomes_a_link_is_not_followed() {
    let top = tempfile::tempdir().unwrap();
    let (precious, dir) = (top.path().join("precious"), top.path().join("job"));
    for sub in ["a", "b", "c"] {
        fs::create_dir_all(dir.join(sub)).unwrap();
    }
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "x").unwrap();
    discard(&dir).unwrap();
    let job = content(top.path()).pop().unwrap();
    let mut swap = || {
        for sub in ["a", "b", "c"] {
            if fs::rename(job.join(sub), job.join(format!("{sub}-away"))).is_ok() {
                std::os::unix::fs::symlink(&precious, job.join(sub)).unwrap();
            }
        }
        ControlFlow::Continue(())
    };
    let _ = empty(top.path(), &mut swap);
    assert!(precious.join("file").exists());
    assert!(empty(top.path(), &mut go_on).unwrap().is_continue());
    assert!(is_empty(top.path()) && precious.join("file").exists());
}

#[test]
fn a_trash_that_others_may_change_is_left_alone() {
    let top = tempfile::tempdir().unwrap();
    let trash = trash_in(top.path());
    fs::create_dir_all(trash.join("x")).unwrap();
    fs::set_permissions(&trash, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(empty(top.path(), &mut go_on).unwrap().is_continue());
    assert!(is_empty(top.path()) && content(top.path()).is_empty());
    assert!(trash.join("x").exists());
}

#[test]
fn a_worker_empties_what_it_finds_and_what_comes() {
    let top = tempfile::tempdir().unwrap();
    let discarded = |name: &str| {
        fs::create_dir_all(top.path().join(name).join("x")).unwrap();
        discard(&top.path().join(name)).unwrap();
    };
    let wait = || {
        let until = Instant::now() + Duration::from_secs(240);
        while !is_empty(top.path()) {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    discarded("before");
    let worker = TrashWorker::start(vec![top.path().to_owned()]).unwrap();
    wait();
    discarded("later");
    worker.wake();
    wait();
}
