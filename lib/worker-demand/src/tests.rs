//! Both forms of the demand file: written, read back, and refused.

use proptest::prelude::*;

use super::*;

fn demand() -> Demand {
    Demand {
        status: Status::InProgress,
        written_at: 1_279_777_271,
        member_id: "12.0".into(),
        update_interval: 300,
        needed: 5,
        worker: Worker {
            program: "/opt/it's \"mine\"\\ping".into(),
            libraries: vec!["/opt/libping.so".into()],
            arguments: vec!["--mw-slave".into(), "$(reboot)".into(), String::new()],
        },
    }
}

/// A file as CL-MW writes it, with its comments, and NIL for no libraries.
const AS_CL_MW: &str = r#";; Status of the computation
(:computation-status :in-progress)
;; Time Stamp of Resource File
(:timestamp 3488766071)
;; Member ID
(:member-id "default-member-id")
;; Update Interval (sec) of Resource File
(:update-interval 300)
;; Slaves Needed
(:slaves-needed 1000)
;; Slave Executable and Shared Libs
(:slave-executable ("/home/me/ping" NIL))
;; Slave Arguments
(:slave-arguments ("--mw-slave" "--mw-master-host" "black.example" "--mw-master-port" "47416"))
"#;

fn refusal(text: &str) -> String {
    Demand::read(text.as_bytes()).unwrap_err().to_string()
}

/// The file above with one form replaced.
fn with(key: &str, form: &str) -> String {
    let lines = AS_CL_MW
        .lines()
        .map(|line| match line.starts_with(&format!("(:{key} ")) {
            true => form,
            false => line,
        });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn what_cl_mw_writes_is_understood() {
    let read = Demand::read(AS_CL_MW.as_bytes()).unwrap();
    assert_eq!(read.written_at, 1_279_777_271, "2010-07-22 05:41:11 UTC");
    assert_eq!((read.needed, read.update_interval), (1000, 300));
    assert_eq!(read.worker.program, "/home/me/ping");
    assert!(read.worker.libraries.is_empty());
    let added = &read.command().arguments[5..];
    assert_eq!(added, ["--mw-member-id", "default-member-id"]);
    let loud = AS_CL_MW
        .to_uppercase()
        .replace("/HOME/ME/PING", "/home/me/ping");
    assert_eq!(
        Demand::read(loud.as_bytes()).unwrap().status,
        Status::InProgress
    );
}

#[test]
fn a_custom_member_id_reaches_the_workers_once() {
    let mut ours = demand();
    assert_eq!(ours.command().arguments[3..], ["--mw-member-id", "12.0"]);
    ours.worker.arguments = ours.command().arguments;
    assert_eq!(ours.command(), ours.worker, "it is there already");
    ours.worker.arguments = vec!["--other".into()];
    assert_eq!(ours.command(), ours.worker, "not a slave of CL-MW");
    let other = Demand {
        member_id: "13.0".into(),
        ..demand()
    };
    assert_ne!(
        demand().command().command_hash(),
        other.command().command_hash()
    );
    assert_eq!(demand().worker.command_hash(), other.worker.command_hash());
}

#[test]
fn what_is_written_is_golden_and_read_back() {
    let text = to_lisp(&demand());
    assert_eq!(text, include_str!("../testdata/demand.lisp"));
    assert_eq!(Demand::read(text.as_bytes()), Ok(demand()));
    let json = to_json(&demand()).unwrap();
    assert_eq!(json, include_str!("../testdata/demand.json"));
    assert_eq!(Demand::read(json.as_bytes()), Ok(demand()));
}

#[test]
fn half_a_file_is_none() {
    let text = to_lisp(&demand());
    let whole = text.trim_end().len();
    for end in 0..whole {
        Demand::read(&text.as_bytes()[..end]).unwrap_err();
    }
    let json = to_json(&demand()).unwrap();
    for end in 0..json.trim_end().len() {
        Demand::read(&json.as_bytes()[..end]).unwrap_err();
    }
    let cut = AS_CL_MW.trim_end().strip_suffix("))").unwrap();
    assert_eq!(
        refusal(cut),
        "line 14, column 1: this list is not closed: the file was cut, or is only half written"
    );
}

#[test]
fn what_a_lisp_reader_would_run_is_refused_where_it_stands() {
    let rows = [
        (
            r#"(:member-id #.(run-program "/bin/rm" '("x")))"#,
            "line 6, column 13: '#' would",
        ),
        ("(:member-id 'x)", "line 6, column 13: '\\'' would"),
        ("(:member-id `x)", "line 6, column 13: '`' would"),
        ("(:member-id ,x)", "line 6, column 13: ',' would"),
        ("(:member-id |x|)", "line 6, column 13: '|' would"),
        ("(:member-id \\x)", "line 6, column 13: '\\\\' would"),
        ("#|(:member-id \"a\")|#", "line 6, column 1: '#' would"),
        ("(:member-id #1=(a . #1#))", "line 6, column 13: '#' would"),
        ("(:member-id cl-user::x)", "\"cl-user::x\" is a symbol"),
        ("(:member-id :a:b)", "\":a:b\" is a symbol"),
        ("(:member-id ::a)", "\"::a\" is a symbol"),
        ("(:member-id :)", "\":\" is a symbol"),
        ("(:member-id t)", "\"t\" is a symbol"),
        ("(:member-id (\"a\" . \"b\"))", "\".\" is a symbol"),
        ("(:member-id a#.b)", "\"a#.b\" is a symbol"),
        ("(:member-id \u{0})", "'\\0' is not allowed"),
        ("(:member-id\u{a0}\"a\")", "'\\u{a0}' is not allowed"),
    ];
    for (form, words) in rows {
        let error = refusal(&with("member-id", form));
        assert!(error.contains(words), "{form}: {error}");
        // Also in values of unknown keywords.
        let error = refusal(&AS_CL_MW.replace(";; Member ID", &form.replace("member-id", "more")));
        assert!(error.starts_with("line 5, "), "{form}: {error}");
    }
}

#[test]
fn what_cannot_be_is_refused_by_its_reason() {
    let rows = [
        ("slaves-needed", "(:slaves-needed -1)", "-1 is negative"),
        (
            "slaves-needed",
            "(:slaves-needed 1.5)",
            "\"1.5\" is not a whole number",
        ),
        (
            "slaves-needed",
            "(:slaves-needed 5000000000)",
            "5000000000 is more workers",
        ),
        (
            "slaves-needed",
            "(:slaves-needed 99999999999999999999)",
            "99999999999999999999 is too large",
        ),
        (
            "slaves-needed",
            "(:slaves-needed \"5\")",
            "line 10, column 17: :slaves-needed is a whole number, and this is a text",
        ),
        (
            "slaves-needed",
            "(:slaves-needed 5 6)",
            "line 10, column 1: :slaves-needed has one value, and this form has 2",
        ),
        ("slaves-needed", "(:slaves-needed)", "this form has 0"),
        ("slaves-needed", "", "the key slaves-needed is missing"),
        (
            "slaves-needed",
            "(:timestamp 1)",
            "line 10, column 1: :timestamp is already on line 4",
        ),
        (
            "slaves-needed",
            "5",
            "line 10, column 1: a form looks like (:keyword value), and this is a number",
        ),
        ("slaves-needed", "()", "and this is an empty list"),
        (
            "slaves-needed",
            "(5)",
            "and this is a list that begins otherwise",
        ),
        (
            "slaves-needed",
            ")",
            "line 10, column 1: this closes a list",
        ),
        (
            "timestamp",
            "(:timestamp 1279777271)",
            "line 4, column 1: :timestamp: 1279777271 is before 1970",
        ),
        (
            "timestamp",
            "(:timestamp 18446744073709551615)",
            "thousands of years from now",
        ),
        (
            "update-interval",
            "(:update-interval 0)",
            "0 s is not between",
        ),
        (
            "update-interval",
            "(:update-interval 604801)",
            "604801 s is not between",
        ),
        (
            "computation-status",
            "(:computation-status :done)",
            "\"done\" is neither",
        ),
        (
            "computation-status",
            "(:computation-status nil)",
            "is :in-progress or :finished, and this is a list",
        ),
        ("member-id", "(:member-id \"\")", ":member-id: it is empty"),
        (
            "member-id",
            "(:member-id \"a\nb\")",
            "holds a control character",
        ),
        (
            "slave-executable",
            "(:slave-executable (\"ping\" NIL))",
            "\"ping\" is not an absolute path",
        ),
        (
            "slave-executable",
            "(:slave-executable (\"/a\" (\"b.so\")))",
            "\"b.so\" is not an absolute path",
        ),
        (
            "slave-executable",
            "(:slave-executable \"/a\")",
            "is a list of the program and",
        ),
        (
            "slave-executable",
            "(:slave-executable (\"/a\" () ()))",
            "is a list of the program and",
        ),
        (
            "slave-executable",
            "(:slave-executable nil)",
            "is a list of the program and",
        ),
        (
            "slave-arguments",
            "(:slave-arguments (\"a\" 5))",
            "is a list of texts, and this is a number",
        ),
        (
            "slave-arguments",
            "(:slave-arguments (\"a\0b\"))",
            "holds a control character",
        ),
        (
            "slave-arguments",
            "(:more ((((((((()))))))))))",
            "nested deeper than 8",
        ),
    ];
    for (key, form, words) in rows {
        let error = refusal(&with(key, form));
        assert!(error.contains(words), "{form}: {error}");
    }
    let unknown = with(
        "update-interval",
        "(:update-interval 9) (:Else (\"a\" nil) 5 :b)",
    );
    assert_eq!(Demand::read(unknown.as_bytes()).unwrap().update_interval, 9);
}

#[test]
fn a_file_has_its_limits() {
    let long = format!("{AS_CL_MW};{}", "x".repeat(MAX_FILE_BYTES));
    assert!(refusal(&long).contains("longer than 64 KiB"));
    let twice = AS_CL_MW.replace("1000", "1000)(:more 1)(:more 1");
    assert!(refusal(&twice).contains(":more is already on line 10"));
    let flood = with(
        "slave-arguments",
        &format!("(:slave-arguments ({}))", "\"\"".repeat(5000)),
    );
    assert!(refusal(&flood).contains("more than 4096 atoms and lists"));
    let long = with(
        "slave-arguments",
        &format!("(:slave-arguments ({}))", "\"\"".repeat(1001)),
    );
    assert!(refusal(&long).contains("more than 1000 texts"));
    let wide = with(
        "member-id",
        &format!("(:member-id \"{}\")", "x".repeat(4097)),
    );
    assert!(refusal(&wide).contains("longer than 4096 characters"));
    assert_eq!(Demand::read(b"(:a \xff)"), Err(ReadError::NotText(4)));
}

#[test]
fn the_json_form_is_as_strict() {
    let json = to_json(&demand()).unwrap();
    let rows = [
        (
            "\"slaves_needed\": 5",
            "\"slaves_needed\": -5",
            "invalid value: integer `-5`, expected u64 at line 6",
        ),
        (
            "\"slaves_needed\": 5",
            "\"slaves_needed\": 5, \"slaves_needed\": 6",
            "duplicate field",
        ),
        (
            "\"slaves_needed\": 5",
            "\"more\": 5",
            "missing field `slaves_needed`",
        ),
        (
            "3488766071",
            "1279777271",
            "timestamp: 1279777271 is before 1970",
        ),
        ("/opt/it", "opt/it", "slave_executable: "),
    ];
    for (from, to, words) in rows {
        let changed = json.replacen(from, to, 1);
        assert_ne!(changed, json, "{from}");
        let error = refusal(&changed);
        assert!(error.contains(words), "{to}: {error}");
    }
    let deep = format!("{{\"more\":{}", "[".repeat(60_000));
    assert!(
        refusal(&deep).contains("EOF"),
        "and not the end of the stack"
    );
}

/// Bytes that often look like the format.
fn alike() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"(".to_vec()),
        Just(b")".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"\\".to_vec()),
        Just(b"(:timestamp 3488766071)".to_vec()),
        Just(b":slaves-needed".to_vec()),
        Just(b" 5 ".to_vec()),
        Just(b";\n".to_vec()),
        Just(b"#.".to_vec()),
        Just(b"nil".to_vec()),
        Just(b"{".to_vec()),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop_oneof![alike(), prop::collection::vec(any::<u8>(), 0..500)]) {
        let _ = Demand::read(&bytes);
    }

    #[test]
    fn a_file_with_any_piece_put_in_is_read_or_refused(at in 0..AS_CL_MW.len(), piece in alike()) {
        let bytes = [&AS_CL_MW.as_bytes()[..at], &piece, &AS_CL_MW.as_bytes()[at..]].concat();
        if let Ok(read) = Demand::read(&bytes) {
            prop_assert!(read.worker.program.starts_with('/'));
            prop_assert_eq!(Demand::read(to_lisp(&read).as_bytes()), Ok(read));
        }
    }

    #[test]
    fn every_demand_is_read_back_from_both_forms(
        finished: bool,
        written_at in 0u64..1 << 39,
        update_interval in 1u64..604_800,
        needed: u32,
        member_id in "[^\\pC]{1,20}",
        words in prop::collection::vec("[^\\pC]{0,20}", 0..6),
    ) {
        let demand = Demand {
            status: if finished { Status::Finished } else { Status::InProgress },
            written_at, update_interval, needed, member_id,
            worker: Worker {
                program: format!("/{}", words.concat()),
                libraries: words.iter().map(|word| format!("/{word}")).collect(),
                arguments: words,
            },
        };
        prop_assert_eq!(Demand::read(to_lisp(&demand).as_bytes()), Ok(demand.clone()));
        prop_assert_eq!(Demand::read(to_json(&demand).unwrap().as_bytes()), Ok(demand));
    }
}
