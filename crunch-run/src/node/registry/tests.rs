//! Tests of the registry of runs, with made-up entries of killed ones.

use super::*;

#[test]
fn who_lives_is_listed_and_who_is_gone_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("list");
    assert_eq!(list(&dir).unwrap(), []);
    let uuid = ContainerUuid::generate("zzzzz");
    let me = register(&dir, &uuid, None).unwrap();
    let entry = RunEntry {
        uuid: uuid.clone(),
        pid: std::process::id(),
        paths: None,
        engine: None,
    };
    assert_eq!(list(&dir).unwrap(), [entry]);
    let anothers = dir.join(format!("crunch-run-{uuid}-1"));
    fs::write(&anothers, "{}").unwrap();
    // Entry of a killed run.
    let dead = dir.join(format!("{uuid}.1"));
    fs::write(&dead, format!("{{\"UUID\":\"{uuid}\",\"PID\":1}}")).unwrap();
    assert_eq!(list(&dir).unwrap().len(), 1);
    assert!(!dead.exists());
    drop(me);
    assert_eq!(list(&dir).unwrap(), []);
    fs::remove_file(anothers).expect("it is no entry");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    // A missing process counts as killed.
    assert!(kill(&dir, &uuid, Signal::TERM).unwrap());
}

#[test]
fn who_was_killed_is_known_to_one_at_a_time_until_nothing_is_left_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let uuids = [(); 2].map(|()| ContainerUuid::generate("zzzzz"));
    let note = |uuid: &ContainerUuid| RunEntry {
        uuid: uuid.clone(),
        pid: 1,
        paths: Some(RunPaths {
            job_dir: "/nowhere".into(),
            own: true,
            scratch: None,
        }),
        engine: None,
    };
    for uuid in &uuids {
        let text = serde_json::to_string(&note(uuid)).unwrap();
        fs::write(dir.join(format!("{uuid}.1")), text).unwrap();
    }
    // Another attempt at one of them lives.
    let alive = register(dir, &uuids[0], note(&uuids[0]).paths).unwrap();
    assert_eq!(list(dir).unwrap().len(), 1);
    // A child of another test may have a copy of the lock for a moment.
    let find = || {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match DeadRuns::find(dir).unwrap() {
                Some(dead) => return dead,
                None => assert!(Instant::now() < until, "the gate stays shut"),
            }
            std::thread::sleep(KILL_POLL_INTERVAL);
        }
    };
    let dead = find();
    let free = |dead: &DeadRuns| -> Vec<RunEntry> {
        let entries = dead.entries();
        let free = entries.filter(|entry| dead.begin(entry).unwrap().is_some());
        free.cloned().collect()
    };
    assert_eq!(free(&dead), [note(&uuids[1])]);
    assert!(DeadRuns::find(dir).unwrap().is_none());
    dead.remove_entry(&note(&uuids[1])).unwrap();
    drop(dead);
    assert_eq!(free(&find()), []);
    drop(alive);
    assert_eq!(free(&find()), [note(&uuids[0])]);
    assert_eq!(
        fs::read_dir(dir).unwrap().count(),
        2,
        "the gate and an entry"
    );
}

/// A cleanup may take half a minute. Other containers start meanwhile.
#[test]
fn a_cleanup_holds_only_runs_of_its_own_container() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let uuids = [(); 2].map(|()| ContainerUuid::generate("zzzzz"));
    let text = format!(
        r#"{{"UUID":"{}","PID":1,"Places":{{"job_dir":"/nowhere","own":true,"scratch":null}}}}"#,
        uuids[0]
    );
    fs::write(dir.join(format!("{}.1", uuids[0])), text).unwrap();
    let dead = DeadRuns::find(dir).unwrap().unwrap();
    let cleanup = dead.begin(dead.entries().next().unwrap()).unwrap().unwrap();
    drop(register(dir, &uuids[1], None).unwrap());
    let same = std::thread::scope(|scope| {
        let same = scope.spawn(|| register(dir, &uuids[0], None).map(drop));
        // Its entry shows that it waits.
        let until = Instant::now() + Duration::from_secs(60);
        while list(dir).unwrap().is_empty() {
            assert!(Instant::now() < until, "it does not register");
            std::thread::sleep(KILL_POLL_INTERVAL);
        }
        assert!(!same.is_finished());
        drop(cleanup);
        same.join().unwrap()
    });
    same.unwrap();
}

#[test]
fn a_killed_run_is_known_by_its_container_and_with_its_engine() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (uuid, other) = (
        ContainerUuid::generate("zzzzz"),
        ContainerUuid::generate("zzzzz"),
    );
    let paths = RunPaths {
        job_dir: "/nowhere".into(),
        own: false,
        scratch: None,
    };
    let engine = EngineRef {
        name: "docker".to_owned(),
        socket: Some("/run/docker.sock".into()),
    };
    let run = register(dir, &uuid, Some(paths)).unwrap();
    run.record_engine(engine.clone()).unwrap();
    assert_eq!(list(dir).unwrap()[0].engine, Some(engine.clone()));
    assert_eq!(dead_runs_of(dir, &uuid).unwrap(), []);
    // Released as by the kernel when the process dies.
    let path = &run.path;
    let copy = dir.join(format!("{uuid}.1"));
    fs::copy(path, &copy).unwrap();
    let found = dead_runs_of(dir, &uuid).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].engine, Some(engine));
    assert_eq!(dead_runs_of(dir, &other).unwrap(), []);
}

#[test]
fn what_another_user_wrote_sends_no_signal() {
    let dir = tempfile::tempdir().unwrap();
    let uuid = ContainerUuid::generate("zzzzz");
    let theirs = dir.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    // Only root can change the owner of a file.
    if std::os::unix::fs::chown(&theirs, Some(65534), Some(65534)).is_ok() {
        for refused in [
            register(&theirs, &uuid, None).map(drop),
            list(&theirs).map(drop),
            kill(&theirs, &uuid, Signal::TERM).map(drop),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("belongs to user 65534"), "{error}");
        }
    }
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path(), &link).unwrap();
    assert!(list(&link).is_err());
}
