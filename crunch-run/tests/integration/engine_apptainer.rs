//! Real containers from Apptainer, as root, and then all of it again as an ordinary user. Needs
//! root, busybox-static and apptainer.

use std::path::Path;

use crate::engine_lab::{Lab, exec, shell};
use crate::shim_scenarios::{self, assert_clean, is_root, parent};
use container_engine::apptainer::{ApptainerEngine, Variant};
use container_engine::{Bind, Engine, ExitStatus, Limits};

/// Whether these can be run here. Where the tests must not be skipped, they fail instead.
fn can_run() -> bool {
    let is_nobody = std::env::var_os("TEST_CRUNCH_RUN").is_some();
    let missing: Vec<&str> = [
        ("apptainer", which::which("apptainer").is_ok()),
        ("root", is_root() || is_nobody),
        ("busybox-static", Path::new("/bin/busybox").exists()),
    ]
    .into_iter()
    .filter(|(_, there)| !there)
    .map(|(what, _)| what)
    .collect();
    if missing.is_empty() {
        return true;
    }
    suite_tests::skip(format_args!(
        "this test needs {missing:?} (contrib/install-deps labs)"
    ));
    false
}

fn lab_with(config: serde_json::Value) -> Lab {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    Lab::of(dir, run_dir, config, |store, settings| {
        Box::new(ApptainerEngine::new(store, settings, Variant::Apptainer)) as Box<dyn Engine>
    })
}

fn labs() -> Option<Lab> {
    can_run().then(|| lab_with(serde_json::json!({"Env": ["PATH=/bin"], "Cmd": ["sh"]})))
}

#[test]
fn all_of_it_as_an_ordinary_user() {
    if is_root() && can_run() {
        crate::engine_lab::again_as_nobody(module_path!(), "all_of_it_as_an_ordinary_user");
    }
}

#[tokio::test]
async fn exit_codes_output_and_signals_come_out_as_they_are() {
    if let Some(lab) = labs() {
        let script = "echo out; echo err >&2; exit 7";
        let ended = lab.run(shell(script)).await.unwrap();
        assert_eq!(ended.code(), 7);
        assert_eq!((&*ended.stdout, &*ended.stderr), ("out\n", "err\n"));
        let ended = lab.run(shell("sh -c 'kill -9 $$'; exit $?")).await.unwrap();
        assert_eq!(ended.code(), 137);

        // Reported as a shell reports it.
        let ended = lab.run(shell("kill -9 $$")).await.unwrap();
        assert_eq!(ended.exit.status, ExitStatus::Code(137));
        assert!(!ended.exit.oom_killed);
        assert_clean(&lab);
    }
}

#[tokio::test]
async fn environment_and_working_directory_are_the_image_s_unless_asked_otherwise() {
    if !can_run() {
        return;
    }
    let lab = lab_with(serde_json::json!({
        "Env": ["PATH=/bin", "FROM=image", "BOTH=image", "ODD=$(id) `id`\n\"x\""],
        "Entrypoint": ["sh", "-c"],
        "Cmd": ["echo cmd"],
        "WorkingDir": "/made/for/it",
    }));
    let mut request = exec(&["pwd; echo $FROM $BOTH $HOME; echo \"$ODD\"; \
        env | cut -d= -f1 | grep -v -e APPTAINER -e SINGULARITY -e '\"' | sort | tr '\\n' ' '"]);
    request.environment.insert("BOTH".into(), "request".into());
    let ended = lab.run(request).await.unwrap();
    assert_eq!(
        ended.stdout,
        "/made/for/it\nimage request /root\n$(id) `id`\n\"x\"\n\
         BOTH FROM HOME HOSTNAME LANG ODD PATH PROMPT_COMMAND PS1 PWD SHLVL "
    );
    assert_eq!(lab.run(exec(&[])).await.unwrap().stdout, "cmd\n");
    let mut request = exec(&["pwd"]);
    request.cwd = Some("/tmp".into());
    assert_eq!(lab.run(request).await.unwrap().stdout, "/tmp\n");
}

#[tokio::test]
async fn the_root_is_writable_and_the_image_stays_as_it_was() {
    if let Some(lab) = labs() {
        shim_scenarios::the_root_is_writable_and_the_image_stays_as_it_was(&lab).await;
    }
}

#[tokio::test]
async fn binds_are_writable_only_where_asked() {
    if let Some(lab) = labs() {
        shim_scenarios::binds_are_writable_only_where_asked(&lab).await;
    }
}

#[tokio::test]
async fn without_a_network_there_is_only_loopback() {
    if let Some(lab) = labs() {
        shim_scenarios::without_a_network_there_is_only_loopback(&lab).await;
    }
}

#[tokio::test]
async fn the_container_sees_only_its_own_processes_and_no_device_of_the_node() {
    if let Some(lab) = labs() {
        shim_scenarios::the_container_sees_only_its_own_processes_and_no_device_of_the_node(&lab)
            .await;
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_command_is_said_in_a_sentence() {
    if let Some(lab) = labs() {
        shim_scenarios::what_is_wrong_with_a_command_is_said_in_a_sentence(&lab).await;
    }
}

/// Apptainer ends with 255 then, as a command may.
#[tokio::test]
async fn a_failure_of_apptainer_is_no_exit_code_of_the_command() {
    if let Some(lab) = labs() {
        let mut request = shell("true");
        let host = lab.scratch("gone");
        request.binds.push(Bind {
            host: host.clone(),
            target: "/there".into(),
            writable: false,
        });
        let (container, ..) = lab.create(request).await.unwrap();
        std::fs::remove_dir(host).unwrap();
        let error = container.start().await.unwrap_err().to_string();
        assert!(
            error.contains("could not make the container on this node"),
            "{error}"
        );
        container.remove().await.unwrap();
        let ended = lab.run(shell("exit 255")).await.unwrap();
        assert_eq!(ended.code(), 255);
        assert_clean(&lab);
    }
}

#[tokio::test]
async fn stop_asks_first_and_then_ends_everything() {
    if let Some(lab) = labs() {
        shim_scenarios::stop_asks_first_and_then_ends_everything(&lab).await;
    }
}

#[tokio::test]
async fn a_container_that_is_never_started_leaves_nothing() {
    if let Some(lab) = labs() {
        shim_scenarios::a_container_that_is_never_started_leaves_nothing(&lab).await;
    }
}

#[tokio::test]
async fn a_container_whose_owner_is_gone_leaves_nothing() {
    if let Some(lab) = labs() {
        shim_scenarios::a_container_whose_owner_is_gone_leaves_nothing(&lab).await;
    }
}

#[tokio::test]
async fn a_container_whose_keeper_is_killed_is_killed_too_and_recovered() {
    if let Some(lab) = labs() {
        shim_scenarios::a_container_whose_keeper_is_killed_is_killed_too_and_recovered(
            &lab, parent,
        )
        .await;
    }
}

#[tokio::test]
async fn what_still_runs_of_an_earlier_attempt_is_ended_by_recover() {
    if let Some(lab) = labs() {
        shim_scenarios::what_still_runs_of_an_earlier_attempt_is_ended_by_recover(&lab).await;
    }
}

#[tokio::test]
async fn limits_are_named() {
    if let Some(lab) = labs() {
        let limits = Limits {
            memory_bytes: Some(32 << 20),
            ..Limits::default()
        };
        let sentences = lab.engine.unenforced_limits(&limits, None).await;
        assert!(
            sentences[0]
                .sentence
                .contains("does not limit what the container takes: memory (33554432 bytes)"),
            "{sentences:?}"
        );
        assert_eq!(
            sentences
                .iter()
                .any(|s| s.sentence.contains("/proc and /sys")),
            is_root()
        );
    }
}

#[tokio::test]
async fn what_is_not_installed_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = node_cache::image::ImageStore::open(dir.path()).unwrap();
    let engine = ApptainerEngine::new(store, Default::default(), Variant::Singularity);
    if which::which("singularity").is_err() {
        assert_eq!(
            engine.check().unwrap_err().to_string(),
            "the singularity engine cannot run containers here: singularity is not in PATH"
        );
    }
}
