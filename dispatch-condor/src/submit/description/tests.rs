//! Tests of submit descriptions.

use std::time::Duration;

use dispatch_core::model::resources::GpuModel;

use super::*;

fn describe(settings: &Settings, needs: &ResourceRequest) -> Result<String, DescriptionError> {
    let params = DescriptionParams {
        instance_id: "me",
        avoid: &["n1.example".into(), "n2".into()],
        requested: RequestedKinds::of(needs, None),
        owner_lines: &[],
        max_starts: MaxStarts(3),
        event_log: Path::new("/home/me too/jobs/events.log"),
    };
    let job = Item {
        container: &ContainerUuid::parse("zzzzz-dz642-queuedcontainer").unwrap(),
        attempt: &TokenUuid::parse("zzzzz-gj3su-000000000000000").unwrap(),
        needs,
        owner: None,
        dir: Path::new("/home/me too/$(x)/1"),
    };
    settings.describe(&params, &[job, job])
}

fn settings(given: &[&str]) -> Settings {
    let mut lines = AdminLines::default();
    for line in given {
        lines.add("lines", line, RequestedKinds::NONE).unwrap();
    }
    Settings {
        crunch_run: vec!["/opt/crunch-run".into(), "--it's \"so\" $(x)".into()],
        admin_lines: lines,
        environment: BTreeMap::from([
            ("ARVADOS_API_HOST".into(), "api.example:443".into()),
            ("SSL_CERT_FILE".into(), "/etc/our ca.pem".into()),
        ]),
        staging: StagingAllowance::Fixed(Duration::from_secs(3600)),
        stop_grace_seconds: 60,
        ..Settings::default()
    }
}

#[test]
fn a_description_says_everything_and_no_secret() {
    let needs = ResourceRequest {
        cpus: 2,
        ram: (1 << 30) + 1,
        scratch: 3000,
        max_run_time: Some(60),
        ..ResourceRequest::default()
    };
    let lines = ["+Group = \"a\"", "Requirements= HasIt || Other"];
    let text = describe(&settings(&lines), &needs).unwrap();
    for line in [
        "executable = /opt/crunch-run",
        r#"arguments = "'--it''s ""so"" $(DOLLAR)(x)' '--leave-to-dispatcher' '--token-file' 'token-$(AttemptName)' '$(ContainerName)'""#,
        r#"environment = "ARVADOS_API_HOST='api.example:443' SSL_CERT_FILE='/etc/our ca.pem'""#,
        "transfer_executable = false",
        "log = /home/me too/jobs/events.log",
        "transfer_input_files = $(JobDirectory)/token-$(AttemptName)",
        "job_lease_duration = 2400",
        "request_cpus = $(JobCpus)",
        "request_memory = $(JobMemory)",
        "request_disk = $(JobDisk)",
        "request_gpus = $(JobGpus)",
        "+ContainerUUID = \"$(ContainerName)\"",
        "+AttemptUUID = \"$(AttemptName)\"",
        "+ContainerDispatcher = \"me\"",
        "allowed_execute_duration = $(JobSeconds)",
        "zzzzz-dz642-queuedcontainer,2,1025,1,0,1,$(Nothing),$(Nothing),$(Nothing),$(Nothing),zzzzz-gj3su-000000000000000,3,3660,$(Nothing),/home/me too/$(DOLLAR)(x)/1",
        "+Group = \"a\"",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
    }
    assert!(text.ends_with("/1\n)\n"), "{text}");
    // HTCondor would use the last of several requirements.
    let both = "requirements = (HasIt || Other) && (";
    let requirements = |l: &&str| l.to_ascii_lowercase().starts_with("requirements");
    let all: Vec<&str> = text.lines().filter(requirements).collect();
    assert!(all.len() == 1 && all[0].starts_with(both), "{all:?}");
}

#[test]
fn a_job_is_charged_to_the_group_of_its_user() {
    let mut settings = settings(&["accounting_group_user = %u", "+Group = \"a\""]);
    let preemptible = (
        "preemptible_lines",
        "+Group = \"low\"",
        RequestedKinds::PREEMPTIBLE,
    );
    let (flag, line, asks) = preemptible;
    settings.admin_lines.add(flag, line, asks).unwrap();
    let owner = Owner {
        username: Some("ada".into()),
        ..Owner::default()
    };
    let described = |owner: Option<&Owner>, preemptible| {
        let needs = ResourceRequest {
            preemptible,
            ..ResourceRequest::default()
        };
        let params = DescriptionParams {
            instance_id: "me",
            avoid: &[],
            requested: RequestedKinds::of(&needs, owner),
            owner_lines: &["accounting_group=lab.%u".into(), "+Group=\"hers\"".into()],
            max_starts: MaxStarts(1),
            event_log: Path::new("/events.log"),
        };
        let lines = settings.lines(&params).unwrap().into_iter();
        let of_owner = |line: &Line| line.key().contains("group");
        let lines = lines.filter(of_owner).map(|line| line.text);
        lines.collect::<Vec<_>>()
    };
    let user_line = "accounting_group_user = $(JobUser)";
    let group_line = "accounting_group=lab.$(JobUser)";
    assert_eq!(
        described(Some(&owner), false),
        [user_line, group_line, "+Group=\"hers\""]
    );
    assert_eq!(
        described(Some(&owner), true),
        [user_line, group_line, "+Group = \"low\""]
    );
    assert_eq!(described(None, false), ["+Group=\"hers\""]);
    let container = ContainerUuid::generate("zzzzz");
    let needs = ResourceRequest::default();
    let fields = settings.requested_fields(&container, &needs, Some(&owner));
    assert_eq!(fields.unwrap()[8], "ada");
}

#[test]
fn where_nothing_is_shared_crunch_run_and_the_certificate_travel() {
    let settings = Settings {
        transfer_crunch_run: true,
        ..settings(&[])
    };
    let text = describe(&settings, &ResourceRequest::default()).unwrap();
    for line in [
        "transfer_executable = true",
        "transfer_input_files = $(JobDirectory)/token-$(AttemptName), /etc/our ca.pem",
        r#"environment = "ARVADOS_API_HOST='api.example:443' SSL_CERT_FILE='our ca.pem'""#,
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
    }
}

#[test]
fn a_container_cannot_write_into_the_description() {
    for partition in ["a b", "x\n)\nqueue 100", "$(HOME)", "\""] {
        let needs = ResourceRequest {
            partitions: vec![partition.to_owned()],
            ..ResourceRequest::default()
        };
        let error = describe(&settings(&["+Queue = \"%P\""]), &needs).unwrap_err();
        assert!(error.to_string().contains("letters"), "{error}");
    }
    // A partition that no line refers to need not be quotable.
    let odd = ResourceRequest {
        partitions: vec!["gpu/long".into()],
        ..ResourceRequest::default()
    };
    describe(&settings(&[]), &odd).unwrap();
    assert!(matches!(
        settings(&[]).fit_partitions(&odd),
        Admission::Never(_)
    ));
    let mapped = settings(&["+Queue = \"%P\""]);
    assert_eq!(mapped.fit_partitions(&odd), Admission::Now);
    let none = ResourceRequest::default();
    assert_eq!(settings(&[]).fit_partitions(&none), Admission::Now);
    let needs = ResourceRequest {
        partitions: vec!["a".into(), "b".into()],
        ..ResourceRequest::default()
    };
    let text = describe(&settings(&["+Queue = \"%P\""]), &needs).unwrap();
    assert!(text.contains(",a$(Comma)b,"), "{text}");
}

#[test]
fn what_gpus_must_have_is_asked_for() {
    #[rustfmt::skip]
    let rows = [
        ("cuda", "12.4", &["8.0"][..], 4 << 30,
         "(GlobalMemoryMb?:4096)>=4096&&(Capability?:8.0)>=8.0&&(MaxSupportedVersion?:12040)>=12040"),
        ("cuda", "", &["10.0", "9.0", "sm_80"], 1, "(GlobalMemoryMb?:1)>=1&&(Capability?:9.0)>=9.0"),
        ("cuda", "11) || (true", &["9.0 || true"], 0, "$(Nothing)"),
        ("rocm", "6.1", &["gfx90a"], 0, "$(Nothing)"),
    ];
    for (stack, driver, targets, vram, expected) in rows {
        let needs = ResourceRequest {
            gpus: 1,
            gpu_stack: stack.into(),
            gpu_model: Some(Box::new(GpuModel {
                driver_version: driver.into(),
                hardware_target: targets.iter().map(|t| (*t).to_owned()).collect(),
                vram,
            })),
            ..ResourceRequest::default()
        };
        let text = describe(&settings(&[]), &needs).unwrap();
        assert!(text.contains(&format!(",{expected},/home")), "{text}");
        let line = "require_gpus = $(JobGpuRule)";
        assert!(text.lines().any(|l| l == line), "{text}");
        let own = describe(&settings(&["require_gpus = true"]), &needs).unwrap();
        assert!(!own.lines().any(|l| l == line), "{own}");
    }
    let text = describe(&settings(&[]), &ResourceRequest::default()).unwrap();
    assert!(!text.contains("require_gpus"), "{text}");
}
