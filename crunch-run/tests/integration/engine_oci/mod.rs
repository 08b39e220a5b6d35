//! Real containers from external OCI runtimes, each scenario with crun and with runc. As root, and
//! then all of it again as an ordinary user. Needs root, busybox-static, crun and runc.

mod recovery;

use std::path::{Path, PathBuf};

use crate::engine_lab::{Lab, exec, shell};
use crate::shim_scenarios::{self, assert_clean, is_root};
use container_engine::oci::OciEngine;
use container_engine::{Engine, ExitStatus};

const RUNTIMES: [&str; 2] = ["crun", "runc"];

/// Whether these can be run here. Where the tests must not be skipped, they fail instead.
fn can_run() -> bool {
    let is_nobody = std::env::var_os("TEST_CRUNCH_RUN").is_some();
    let missing = RUNTIMES
        .into_iter()
        .filter(|name| {
            !Path::new("/usr/bin").join(name).exists()
                && !Path::new("/usr/sbin").join(name).exists()
        })
        .chain((!is_root() && !is_nobody).then_some("root"))
        .chain((!Path::new("/bin/busybox").exists()).then_some("busybox-static"))
        .collect::<Vec<_>>();
    if missing.is_empty() {
        return true;
    }
    suite_tests::skip(format_args!("this test needs {missing:?}"));
    false
}

fn program(runtime: &str) -> PathBuf {
    // An ordinary user's PATH has no /usr/sbin.
    ["/usr/bin", "/usr/sbin"]
        .iter()
        .map(|dir| Path::new(dir).join(runtime))
        .find(|path| path.exists())
        .unwrap()
}

fn lab_with(runtime: &str, config: serde_json::Value) -> Lab {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    lab_in(dir, run_dir, runtime, config)
}

fn lab_in(
    dir: tempfile::TempDir,
    run_dir: PathBuf,
    runtime: &str,
    config: serde_json::Value,
) -> Lab {
    Lab::of(dir, run_dir, config, |store, settings| {
        Box::new(OciEngine::new(store, settings, Some(program(runtime)))) as Box<dyn Engine>
    })
}

fn labs() -> Vec<Lab> {
    if !can_run() {
        return Vec::new();
    }
    RUNTIMES
        .iter()
        .map(|runtime| {
            lab_with(
                runtime,
                serde_json::json!({"Env": ["PATH=/bin"], "Cmd": ["sh"]}),
            )
        })
        .collect()
}

#[test]
fn all_of_it_as_an_ordinary_user() {
    if is_root() && can_run() {
        crate::engine_lab::again_as_nobody(module_path!(), "all_of_it_as_an_ordinary_user");
    }
}

#[tokio::test]
async fn exit_codes_output_and_signals_come_out_as_they_are() {
    for lab in labs() {
        let script = "echo out; echo err >&2; exit 7";
        let ended = lab.run(shell(script)).await.unwrap();
        assert_eq!(ended.code(), 7);
        assert_eq!((&*ended.stdout, &*ended.stderr), ("out\n", "err\n"));
        let ended = lab.run(shell("sh -c 'kill -9 $$'; exit $?")).await.unwrap();
        assert_eq!(ended.code(), 137);

        let (container, ..) = lab.create(exec(&["sleep", "600"])).await.unwrap();
        container.start().await.unwrap();
        let pid = rustix::process::Pid::from_raw(container.pid().unwrap() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let exit = container.wait().await.unwrap();
        assert_eq!(exit.status, ExitStatus::Signal(9));
        assert!(!exit.oom_killed);
        container.remove().await.unwrap();
        assert_clean(&lab);
    }
}

#[tokio::test]
async fn environment_and_working_directory_are_the_image_s_unless_asked_otherwise() {
    for runtime in RUNTIMES.iter().filter(|_| can_run()) {
        let lab = lab_with(
            runtime,
            serde_json::json!({
                "Env": ["PATH=/bin", "FROM=image", "BOTH=image"],
                "Entrypoint": ["sh", "-c"],
                "Cmd": ["echo cmd"],
                "WorkingDir": "/made/for/it",
            }),
        );
        let mut request =
            exec(&["pwd; echo $FROM $BOTH $HOME; env | cut -d= -f1 | sort | tr '\\n' ' '"]);
        request.environment.insert("BOTH".into(), "request".into());
        let ended = lab.run(request).await.unwrap();
        assert_eq!(
            ended.stdout,
            "/made/for/it\nimage request /root\nBOTH FROM HOME HOSTNAME PATH PWD SHLVL "
        );
        assert_eq!(lab.run(exec(&[])).await.unwrap().stdout, "cmd\n");
        let mut request = exec(&["pwd"]);
        request.cwd = Some("/tmp".into());
        assert_eq!(lab.run(request).await.unwrap().stdout, "/tmp\n");
    }
}

#[tokio::test]
async fn the_image_s_user_is_who_runs_it_where_such_a_user_can_be() {
    for runtime in RUNTIMES.iter().filter(|_| can_run()) {
        let lab = lab_with(
            runtime,
            serde_json::json!({"Env": ["PATH=/bin"], "User": "ann"}),
        );
        let ended = lab
            .run(shell("id; echo x > /tmp/file && stat -c %u /tmp/file"))
            .await
            .unwrap();
        let expected = match (is_root(), *runtime) {
            (true, _) => "uid=1000(ann) gid=100(users) groups=10(wheel),100(users)\n1000\n",
            (false, "crun") => "uid=1000(ann) gid=100(users)\n1000\n",
            (false, _) => "uid=0(root) gid=0(root)\n0\n",
        };
        assert_eq!(ended.stdout, expected, "{runtime}");
        let lab = lab_with(runtime, serde_json::json!({"User": "eve"}));
        let error = lab.run(exec(&["true"])).await.err().unwrap();
        assert_eq!(
            error.to_string(),
            "user \"eve\" is not in the image's /etc/passwd"
        );
        assert!(error.is_user_error());
    }
}

#[tokio::test]
async fn the_root_is_writable_and_the_image_stays_as_it_was() {
    for lab in labs() {
        shim_scenarios::the_root_is_writable_and_the_image_stays_as_it_was(&lab).await;
    }
}

#[tokio::test]
async fn binds_are_writable_only_where_asked() {
    for lab in labs() {
        shim_scenarios::binds_are_writable_only_where_asked(&lab).await;
    }
}

#[tokio::test]
async fn without_a_network_there_is_only_loopback() {
    for lab in labs() {
        shim_scenarios::without_a_network_there_is_only_loopback(&lab).await;
    }
}

#[tokio::test]
async fn the_container_sees_only_its_own_processes_and_no_device_of_the_node() {
    for lab in labs() {
        let files =
            shim_scenarios::the_container_sees_only_its_own_processes_and_no_device_of_the_node(
                &lab,
            )
            .await;
        // stdin, stdout, stderr and the descriptor of the directory.
        assert_eq!(files, "4");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_command_is_said_in_a_sentence() {
    for lab in labs() {
        shim_scenarios::what_is_wrong_with_a_command_is_said_in_a_sentence(&lab).await;
    }
}

#[tokio::test]
async fn stop_asks_first_and_then_ends_everything() {
    for lab in labs() {
        shim_scenarios::stop_asks_first_and_then_ends_everything(&lab).await;
    }
}

#[tokio::test]
async fn limits_hold_for_root_and_are_named_for_others() {
    for lab in labs() {
        let mut request = shell("dd if=/dev/zero of=/dev/null bs=200M count=1; exit 5");
        request.limits.memory_bytes = Some(32 << 20);
        let sentences = lab.engine.unenforced_limits(&request.limits, None).await;
        if !is_root() {
            assert!(
                sentences[0]
                    .sentence
                    .contains("does not limit what the container takes: memory (33554432 bytes)"),
                "{sentences:?}"
            );
            continue;
        }
        assert!(sentences.is_empty(), "{sentences:?}");
        let ended = lab.run(request).await.unwrap();
        assert_eq!(ended.code(), 5);
        assert!(ended.exit.oom_killed, "{:?}", ended.exit);
        assert!(ended.exit.peak_memory.is_some_and(|peak| peak <= 32 << 20));
        let mut request = shell("for i in 1 2 3 4 5 6 7 8 9; do sleep 1 & done; echo all");
        request.limits.pids = Some(5);
        assert_ne!(lab.run(request).await.unwrap().stdout, "all\n");
    }
}

#[tokio::test]
async fn a_runtime_that_is_not_there_is_said_so() {
    for (program, reason) in [
        (
            "/no/such/runtime",
            "the oci engine cannot run containers here: /no/such/runtime is not a program here",
        ),
        ("/bin/false", "/bin/false --version fails"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let store = node_cache::image::ImageStore::open(dir.path()).unwrap();
        let engine = OciEngine::new(store, Default::default(), Some(program.into()));
        let error = engine.check().unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
