//! Tests of job arrays: which elements are identified, missing or abandoned.

use proptest::prelude::*;

use super::*;

const LABEL: &str = "0123456789abcdef";

fn names(count: usize) -> Vec<(ContainerUuid, TokenUuid)> {
    let name = |n| {
        let container = ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}"));
        let attempt = TokenUuid::parse(&format!("zzzzz-gj3su-{n:015}"));
        (container.unwrap(), attempt.unwrap())
    };
    (0..count).map(name).collect()
}

fn elements(names: &[(ContainerUuid, TokenUuid)]) -> Vec<Element<'_>> {
    let element = |(container, attempt)| Element {
        container,
        attempt,
        owner: None,
    };
    names.iter().map(|(c, a)| (c, a)).map(element).collect()
}

fn ours(text: &str) -> Argument {
    Argument {
        text: text.into(),
        from: Source::Always("test"),
    }
}

fn admins(text: &str) -> Argument {
    Argument {
        text: text.into(),
        from: Source::Set {
            flag: "arguments",
            value: text.into(),
        },
    }
}

/// Arguments of one container's submission, with the admin's `extra` among them.
fn submission(container: &str, extra: &str) -> Vec<Argument> {
    vec![
        ours("--nice=10000"),
        ours("--parsable"),
        ours(&format!("--output=/shared/{container}/output.log")),
        admins(&format!("--job-name={container}")),
        admins("--mem=100"),
        admins(extra),
        ours(&format!("--job-name={container}")),
        ours(&format!("--comment=attempt-of-{container} label")),
    ]
}

#[test]
fn only_what_is_the_same_but_for_the_names_goes_together() {
    let common = |container, extra| ArrayTemplate::from_arguments(&submission(container, extra));
    let one = common("a", "--partition=main").unwrap();
    assert_eq!(Some(&one), common("b", "--partition=main").as_ref());
    assert_ne!(Some(&one), common("b", "--partition=gpu").as_ref());
    assert_ne!(common("a", "--workdir=/x/a"), common("b", "--workdir=/x/b"));
    for extra in [
        "--array=1-3",
        "-a0",
        "--begin=noon",
        "-H",
        "--hold",
        "-Mwest",
    ] {
        assert_eq!(common("a", extra), None, "{extra}");
    }
    assert!(common("a", "--account=x").is_some() && common("a", "-Ax").is_some());
    assert_eq!(
        one.arguments(3, "label/1/0"),
        [
            "--nice=10000",
            "--parsable",
            "--mem=100",
            "--partition=main",
            "--output=/dev/null",
            "--array=0-2",
            "--begin=now+3650days",
            "--job-name=not-yet-a-container",
            "--comment=label/1/0",
        ]
    );
}

#[test]
fn each_element_runs_its_own_container() {
    let dir = tempfile::tempdir().unwrap();
    let state_dir = dir.path().join("it's shared");
    let settings = Settings {
        crunch_run: vec!["printf".into(), "%s|".into()],
        ..Settings::default()
    };
    let names = names(12);
    let run = |common: &ArrayTemplate, number: &str| {
        let script = common.script(&settings, &state_dir, &elements(&names));
        let mut sh = std::process::Command::new("sh");
        let sh = sh.args(["-c", &script.unwrap()]);
        sh.env("SLURM_ARRAY_TASK_ID", number).output().unwrap()
    };
    let ours = ArrayTemplate::from_arguments(&submission("a", "--x=y")).unwrap();
    let theirs = ArrayTemplate::from_arguments(&[admins("--output=/dev/null")]).unwrap();
    for (number, (container, attempt)) in names.iter().enumerate() {
        let dir_of_attempt = state_dir.join(container.as_str());
        let token = dir_of_attempt.join(format!("token-{attempt}"));
        let expected = format!(
            "--leave-to-dispatcher|--token-file|{}|{container}|",
            token.display()
        );
        let output = run(&theirs, &number.to_string());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
        std::fs::create_dir_all(&dir_of_attempt).unwrap();
        assert!(run(&ours, &number.to_string()).status.success());
        let log = std::fs::read_to_string(dir_of_attempt.join("output.log")).unwrap();
        assert_eq!(log, expected);
    }
    for number in ["12", "", "1 2"] {
        assert_eq!(run(&ours, number).status.code(), Some(75), "{number:?}");
    }
}

#[test]
fn one_update_names_an_element_and_lets_it_begin() {
    let names = names(1000);
    let parts = naming_updates("12", &elements(&names), LABEL);
    assert_eq!(parts.iter().map(|(count, _)| count).sum::<usize>(), 1000);
    assert!(parts.len() > 1 && parts.iter().all(|(_, text)| text.len() <= MAX_UPDATE_BYTES));
    let lines: Vec<&str> = parts.iter().flat_map(|(_, text)| text.lines()).collect();
    assert_eq!(
        lines[999],
        "update JobId=12_999 JobName=zzzzz-dz642-000000000000999 \
         Comment=zzzzz-gj3su-000000000000999,0123456789abcdef StartTime=now"
    );
    let owner = Owner {
        username: Some("ada".into()),
        ..Owner::default()
    };
    let mut of_ada = elements(&names[..1]);
    of_ada[0].owner = Some(&owner);
    let (_, text) = &naming_updates("12", &of_ada, LABEL)[0];
    let comment = format!("Comment=zzzzz-gj3su-000000000000000,{LABEL},user=ada StartTime");
    assert!(text.contains(&comment), "{text}");
    // The comment it sets is parsed in a listing.
    let row = format!(
        "@12_7|PENDING|{},{LABEL}||0|1|N/A|None|{}\n",
        names[7].1, names[7].0
    );
    let rows = crate::query::squeue::parse(&row, LABEL, &()).unwrap();
    assert_eq!(rows[0].attempt.as_ref(), Some(&names[7].1));
}

#[test]
fn elements_of_abandoned_arrays_are_found() {
    let arrays = ArrayTracker::default();
    let row = |id: &str, placeholder_comment: &str| {
        format!("@{id}|PENDING|{placeholder_comment}||10000|1|N/A|BeginTime|not-yet-a-container\n")
    };
    let before = arrays.snapshot();
    let first = arrays.begin(LABEL);
    let named = format!("@9|PENDING|attempt {LABEL}||0|1|N/A|None|x\n");
    let other = row(
        "8_1",
        &first.placeholder_comment.replace(LABEL, "fedcba9876543210"),
    );
    let earlier = row("7_1", &format!("{LABEL}/abc/0"));
    let listing = row("5_0", &first.placeholder_comment)
        + &named
        + &other
        + &earlier
        + &row("5_1", &first.placeholder_comment);
    let during = arrays.snapshot();
    let abandoned = |before: &ArraySnapshot| arrays.abandoned_elements(&listing, LABEL, before);
    assert_eq!(abandoned(&before), ["7_1"], "it began after the snapshot");
    assert_eq!(abandoned(&during), ["7_1"], "it is in progress");
    drop(first);
    assert_eq!(
        abandoned(&during),
        ["7_1"],
        "it was in progress at the snapshot"
    );
    assert_eq!(abandoned(&arrays.snapshot()), ["5_0", "7_1", "5_1"]);
    // The parser of our jobs skips them.
    assert!(
        crate::query::squeue::parse(&row("5_0", "x/1/2"), "x", &())
            .unwrap()
            .is_empty()
    );
}

#[test]
fn the_array_limit_is_parsed() {
    let rows = [
        ("MaxArraySize            = 1001\n", MAX_ELEMENTS),
        ("A = 1\nMaxArraySize = 12\nMaxJobCount = 5\n", 12),
        ("MaxArraySize = 0\n", 0),
        ("", 0),
    ];
    for (config, most) in rows {
        assert_eq!(parse_max_elements(config), most, "{config:?}");
    }
    let with = |argument: &str| Settings {
        arguments: vec![argument.into()],
        ..Settings::default()
    };
    assert!(settings_allow_arrays(&with("--mem=%M")));
    assert!(!settings_allow_arrays(&with("--begin=18:00")));
}

proptest! {
    /// An update fits into a pipe's buffer.
    #[test]
    fn parts_are_written_whole(count in 1_usize..900) {
        let names = names(count);
        for (_, text) in naming_updates("123456", &elements(&names), LABEL) {
            prop_assert!(text.len() <= MAX_UPDATE_BYTES && text.ends_with(" StartTime=now\n"));
        }
    }
}
