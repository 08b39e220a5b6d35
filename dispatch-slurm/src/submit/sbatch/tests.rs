//! Tests of sbatch arguments and of the job script.

use std::collections::BTreeMap;

use dispatch_core::model::instance_types::{InstanceType, fit};
use dispatch_core::model::owner::Owner;
use dispatch_core::model::resources::GpuModel;
use dispatch_core::scheduler::owner_map::OwnerMap;

use super::*;
use crate::settings::PerPartition;

const UUID: &str = "zzzzz-dz642-queuedcontainer";
const MIB: u64 = 1 << 20;

fn owned(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

/// Settings of the upstream dispatcher: only lists.
fn upstream() -> Settings {
    Settings {
        arguments: owned(&DEFAULT_ARGUMENTS),
        gpu_arguments: owned(&DEFAULT_GPU_ARGUMENTS),
        crunch_run: owned(&["crunch-run"]),
        ..Settings::default()
    }
}

fn container() -> ResourceRequest {
    ResourceRequest {
        cpus: 2,
        ram: 250_000_000 + 550 * MIB,
        ..ResourceRequest::default()
    }
}

fn sbatch(settings: &Settings, needs: &ResourceRequest, avoid: &[String]) -> Vec<Argument> {
    let container = ContainerUuid::parse(UUID).unwrap();
    let job = SbatchJob {
        container: &container,
        needs,
        comment: "attempt label",
        output: Path::new("/shared/100%/output.log"),
        avoid,
        nice: ROOM_TO_RAISE,
        times: PartitionTimes::default(),
    };
    settings.sbatch_arguments(job).unwrap()
}

fn words(arguments: Vec<Argument>) -> Vec<String> {
    arguments
        .into_iter()
        .map(|argument| argument.text)
        .collect()
}

/// Arguments from the lists, after a check of the leading ones.
fn from_lists(settings: &Settings, needs: &ResourceRequest) -> String {
    let all = words(sbatch(settings, needs, &[]));
    assert_eq!(all[..3], ["--nice=10000", "--no-requeue", "--parsable"]);
    let ours = [
        "--open-mode=",
        "--output=",
        "--chdir=",
        "--nodes=",
        "--comment=",
    ];
    let theirs = all[3..all.len() - 2].iter();
    theirs
        .filter(|text| !ours.iter().any(|our| text.starts_with(our)))
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" ")
}

/// An owner map with these lines.
fn owner_map(lines: &str) -> Arc<OwnerMap> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    Arc::new(OwnerMap::open(file.path(), crate::settings::check_argument).unwrap())
}

fn of_user(settings: &Settings, username: &str) -> ResourceRequest {
    let owner = Some(Arc::new(Owner {
        username: Some(username.to_owned()),
        ..Owner::default()
    }));
    ResourceRequest {
        charged_to: Some(Arc::new(settings.charge(&owner))),
        ..ResourceRequest::default()
    }
}

#[test]
fn a_job_is_charged_to_the_account_of_its_user() {
    let settings = Settings {
        arguments: owned(&["--wckey=%u", "--qos=all"]),
        preemptible_arguments: owned(&["--qos=low"]),
        account: PerPartition::parse(&owned(&["site"])),
        owner_map: Some(owner_map("ada --account=genomics --qos=fast\n* -Aguests\n")),
        ..upstream()
    };
    let preemptible = ResourceRequest {
        preemptible: true,
        ..of_user(&settings, "ada")
    };
    #[rustfmt::skip]
    let rows = [
        (of_user(&settings, "ada"), "--wckey=ada --qos=all --account=genomics --qos=fast"),
        (of_user(&settings, "bob"), "--wckey=bob --qos=all -Aguests"),
        (ResourceRequest::default(), "--qos=all -Aguests"),
        (preemptible, "--wckey=ada --qos=all --account=genomics --qos=fast --qos=low"),
    ];
    for (needs, expected) in rows {
        assert_eq!(from_lists(&settings, &needs), expected);
    }
}

#[test]
fn gpus_are_requested_by_model_if_it_is_known() {
    let settings = Settings {
        gpu_models: BTreeMap::from([
            ("8.0".to_owned(), "a100".to_owned()),
            ("gfx90a".to_owned(), "mi250".to_owned()),
        ]),
        ..upstream()
    };
    #[rustfmt::skip]
    let rows = [
        (&["8.0"][..], "--gpus=2 --gpus=a100:2"),
        (&["gfx1100", "gfx90a"], "--gpus=2 --gpus=mi250:2"),
        (&["9.0"], "--gpus=2"),
        (&[], "--gpus=2"),
    ];
    for (targets, expected) in rows {
        let needs = ResourceRequest {
            gpus: 2,
            gpu_model: Some(Box::new(GpuModel {
                hardware_target: owned(targets),
                ..GpuModel::default()
            })),
            ..ResourceRequest::default()
        };
        let given = from_lists(&settings, &needs);
        assert!(given.ends_with(expected), "{given}");
        assert_eq!(
            given.matches("--gpus").count(),
            expected.matches("--gpus").count()
        );
    }
}

#[test]
fn an_owner_map_sets_no_option_of_the_dispatcher() {
    for (argument, words) in [
        ("--nice=0", "orders its jobs"),
        ("--array=1-3", "one container"),
        ("--clusters=west", "other commands"),
        ("--account=%Z", "%Z"),
        ("account=x", "no option of sbatch"),
    ] {
        let error = crate::settings::check_argument(argument).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn preemptible_containers_get_arguments_of_their_own() {
    let settings = Settings {
        preemptible_arguments: owned(&["--partition=low", "--qos=low"]),
        ..upstream()
    };
    let plain = ResourceRequest::default();
    let needs = ResourceRequest {
        preemptible: true,
        partitions: vec!["main".to_owned()],
        ..plain.clone()
    };
    let all = words(sbatch(&settings, &needs, &[]));
    let last = all.iter().rfind(|word| word.starts_with("--partition="));
    assert_eq!(last.unwrap(), "--partition=low", "{all:?}");
    assert!(all.contains(&"--qos=low".to_owned()));
    let all = words(sbatch(&settings, &plain, &[]));
    assert!(!all.iter().any(|word| word.contains("low")), "{all:?}");
}

#[test]
fn lists_are_rendered_as_upstream_does() {
    let gpus = ResourceRequest {
        gpus: 3,
        ..container()
    };
    let two = ResourceRequest {
        cpus: 1,
        partitions: owned(&["blurb", "b2"]),
        ..container()
    };
    let large = ResourceRequest {
        cpus: 4,
        ram: 12_000_000_000 + 550 * MIB,
        scratch: 48_000_000_000,
        ..ResourceRequest::default()
    };
    let name = format!("--job-name={UUID}");
    let mut account = upstream();
    account.arguments.insert(0, "--account=accountname".into());
    account
        .gpu_arguments
        .push("--partition=gpupartition".into());
    let bare = |list: &[&str]| Settings {
        arguments: owned(list),
        ..upstream()
    };
    #[rustfmt::skip]
    let rows = [
        (bare(&[]), &container(), String::new()),
        (bare(&["--arg1=v1", "--arg2"]), &container(), "--arg1=v1 --arg2".to_owned()),
        (upstream(), &container(), format!("{name} --mem=789 --cpus-per-task=2 --tmp=0")),
        (account, &gpus, format!("--account=accountname {name} --mem=789 --cpus-per-task=2 --tmp=0 --gpus=3 --partition=gpupartition")),
        (upstream(), &two, format!("{name} --mem=789 --cpus-per-task=1 --tmp=0 --partition=blurb,b2")),
        (upstream(), &large, format!("{name} --mem=11995 --cpus-per-task=4 --tmp=45777")),
    ];
    for (settings, needs, expected) in rows {
        assert_eq!(from_lists(&settings, needs), expected);
    }
}

#[test]
fn the_cheapest_instance_type_that_suits_is_named() {
    let kind = |name: &str, ram, cpus, price| InstanceType {
        name: name.into(),
        ram,
        cpus,
        price,
        ..InstanceType::default()
    };
    let mut settings = Settings {
        arguments: owned(&["--constraint=instancetype=%I"]),
        ..upstream()
    };
    let needs = ResourceRequest {
        ram: 250_000_000,
        ..container()
    };
    assert_eq!(from_lists(&settings, &needs), "--constraint=instancetype=");
    settings.types = vec![
        kind("a1.tiny", 128_000_000, 1, 0.02),
        kind("a1.small", 256_000_000, 2, 0.04),
        kind("a1.medium", 512_000_000, 4, 0.08),
        kind("a1.large", 1_024_000_000, 8, 0.16),
    ];
    assert_eq!(
        from_lists(&settings, &needs),
        "--constraint=instancetype=a1.medium"
    );
    assert_eq!(
        fit(&settings.types, &needs),
        dispatch_core::model::resources::Admission::Now
    );
    settings.types.truncate(1);
    let container = ContainerUuid::parse(UUID).unwrap();
    let job = SbatchJob {
        container: &container,
        needs: &needs,
        comment: "",
        output: Path::new("/"),
        avoid: &[],
        nice: ROOM_TO_RAISE,
        times: PartitionTimes::default(),
    };
    let error = settings.sbatch_arguments(job).unwrap_err();
    assert!(error.to_string().starts_with("none of the 1 "), "{error}");
    let dispatch_core::model::resources::Admission::Never(words) = fit(&settings.types, &needs)
    else {
        panic!("it fits");
    };
    assert_eq!(words, error.to_string());
}

#[test]
fn defaults_fill_what_the_admin_leaves_out() {
    let settings = Settings {
        account: PerPartition::parse(&owned(&["lab", "gpu:lab-gpu"])),
        qos: PerPartition::parse(&owned(&["gpu:high"])),
        reservation: PerPartition::parse(&owned(&["now"])),
        constraint: PerPartition::parse(&owned(&["instancetype=%I&big"])),
        clusters: Some("east".into()),
        types: vec![InstanceType {
            name: "t".into(),
            cpus: 8,
            ram: 1 << 40,
            ..InstanceType::default()
        }],
        staging: "60m".parse().unwrap(),
        warning_seconds: 120,
        ..upstream()
    };
    let needs = ResourceRequest {
        max_run_time: Some(61),
        partitions: owned(&["gpu"]),
        ..container()
    };
    let avoid = owned(&["n1", "n2"]);
    assert_eq!(
        words(sbatch(&settings, &needs, &avoid)),
        [
            "--nice=10000",
            "--no-requeue",
            "--parsable",
            "--open-mode=append",
            "--output=/shared/100%%/output.log",
            "--chdir=/",
            "--nodes=1",
            "--exclude=n1,n2",
            "--time=62",
            "--signal=B:XCPU@120",
            "--account=lab-gpu",
            "--qos=high",
            "--reservation=now",
            "--constraint=instancetype=t&big",
            "--clusters=east",
            "--job-name=zzzzz-dz642-queuedcontainer",
            "--mem=789",
            "--cpus-per-task=2",
            "--tmp=0",
            "--partition=gpu",
            "--job-name=zzzzz-dz642-queuedcontainer",
            "--comment=attempt label",
        ]
    );
    // Options of the admin replace ours.
    let mut own = settings.clone();
    own.arguments = owned(&[
        "--time=%W",
        "-xn3",
        "--signal=USR2@60",
        "-A",
        "mine",
        "-qlow",
        "-Mwest",
        "-Cx",
        "-o",
        "/dev/null",
        "--chdir=/x",
    ]);
    assert_eq!(
        words(sbatch(&own, &needs, &avoid))[3..],
        [
            "--open-mode=append",
            "--nodes=1",
            "--reservation=now",
            "--time=2",
            "-xn3",
            "--signal=USR2@60",
            "-A",
            "mine",
            "-qlow",
            "-Mwest",
            "-Cx",
            "-o",
            "/dev/null",
            "--chdir=/x",
            "--job-name=zzzzz-dz642-queuedcontainer",
            "--comment=attempt label",
        ]
    );
}

#[test]
fn every_argument_tells_where_it_comes_from() {
    let settings = Settings {
        account: PerPartition::parse(&owned(&["lab"])),
        ..upstream()
    };
    let all = sbatch(&settings, &container(), &[]);
    let from = |text: &str| all.iter().find(|a| a.text == text).map(|a| a.from.clone());
    let set = |flag, value: &str| {
        Some(Source::Set {
            flag,
            value: value.to_owned(),
        })
    };
    assert_eq!(from("--mem=789"), set("arguments", "--mem=%M"));
    assert_eq!(from("--account=lab"), set("account", "lab"));
    assert!(matches!(from("--nice=10000"), Some(Source::Always(_))));
}

#[test]
fn the_script_is_quoted_for_the_shell() {
    let container = ContainerUuid::parse(UUID).unwrap();
    let script = |words: &[&str]| {
        let settings = Settings {
            crunch_run: owned(words),
            ..Settings::default()
        };
        settings
            .job_script(&container, Path::new("/shared/my dir/token"))
            .unwrap()
    };
    assert_eq!(
        script(&["/opt/it's/crunch-run", "--runtime-engine=auto"]),
        "#!/bin/sh\nexec \"/opt/it's/crunch-run\" '--runtime-engine=auto' --leave-to-dispatcher --token-file '/shared/my dir/token' zzzzz-dz642-queuedcontainer\n"
    );
    // A shell parses the script into exactly these words.
    for words in [
        &["foo", "bar baz"][..],
        &["foo\"", "'waz 'qux\n"],
        &["sh", "-c", "echo $foo `id` \\"],
    ] {
        let script = script(words).replace("exec ", "printf '%s\\0' ");
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let read: Vec<&str> = output.split_terminator('\0').collect();
        assert_eq!(&read[..words.len()], words);
        assert_eq!(
            read[words.len()..],
            [
                "--leave-to-dispatcher",
                "--token-file",
                "/shared/my dir/token",
                UUID
            ]
        );
    }
}
