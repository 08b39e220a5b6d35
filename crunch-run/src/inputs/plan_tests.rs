//! Refused mounts, and the plan of the others.

use serde_json::{Value, json};

use super::*;

const PDH: &str = "1f4b0bc7583c2a7f9102c395f4ffc5e3+45";
const UUID: &str = "zzzzz-4zz18-0123456789abcde";

fn planned(mounts: Value, secret: Value) -> Result<Plan, MountError> {
    let container: Container = serde_json::from_value(json!({
        "uuid": "zzzzz-dz642-0123456789abcde", "output_path": "/out", "mounts": mounts,
    }))
    .unwrap();
    plan(&container, &serde_json::from_value(secret).unwrap(), false)
}

/// The mounts beside a tmp mount at the output path.
fn with(target: &str, mount: Value) -> Result<Plan, MountError> {
    let mut mounts = json!({"/out": {"kind": "tmp"}});
    mounts[target] = mount;
    planned(mounts, json!({}))
}

fn roles(plan: &Plan) -> Vec<(&str, &Role)> {
    let items = plan.items.iter();
    items.map(|i| (i.target.as_str(), &i.role)).collect()
}

#[test]
fn every_mistake_is_found_and_named() {
    let tmp = json!({"kind": "tmp"});
    let collection = |more: Value| {
        let mut mount = json!({"kind": "collection"});
        mount
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        mount
    };
    let cases = [
        ("in", tmp.clone(), "does not begin with /"),
        ("/in/../x", tmp.clone(), "has a part \"..\""),
        ("/", tmp.clone(), "root of the container"),
        ("//out/", tmp.clone(), "same place as mount //out/"),
        ("/out/tmp", tmp.clone(), "only collection, json and text"),
        ("/in", json!({"kind": "waz"}), "has kind \"waz\""),
        ("/out/in", json!({"kind": "waz"}), "has kind \"waz\""),
        ("/keep", json!({"kind": "keep"}), "has kind \"keep\""),
        (
            "/f",
            json!({"kind": "file", "path": "/out/f"}),
            "has kind \"file\"",
        ),
        ("/t", json!({"kind": "text", "content": 5}), "not a string"),
        ("/t", json!({"kind": "text"}), "not a string"),
        (
            "/c",
            collection(json!({"uuid": UUID, "portable_data_hash": PDH})),
            "both by uuid",
        ),
        (
            "/c",
            collection(json!({"uuid": UUID, "writable": true})),
            "by its uuid",
        ),
        (
            "/out/c",
            collection(json!({"uuid": UUID, "writable": true})),
            "by its uuid",
        ),
        (
            "/c",
            collection(json!({"portable_data_hash": PDH, "writable": true})),
            "at or below the output path",
        ),
        (
            "/c",
            collection(json!({"portable_data_hash": "foo"})),
            "not a portable data hash",
        ),
        (
            "/c",
            collection(json!({"uuid": "zzzzz-dz642-0123456789abcde"})),
            "not the uuid of a",
        ),
        ("stdin", tmp.clone(), "has kind \"tmp\""),
        ("stdin", collection(json!({})), "not a file"),
        ("stdout", tmp.clone(), "only file"),
        (
            "stderr",
            json!({"kind": "text", "content": "x"}),
            "only file",
        ),
        (
            "stdout",
            json!({"kind": "file", "path": "/tmp/x"}),
            "not below the output path",
        ),
        (
            "stdout",
            json!({"kind": "file", "path": "/output/x"}),
            "not below the output path",
        ),
        (
            "stdout",
            json!({"kind": "file", "path": "/out"}),
            "not below the output path",
        ),
        (
            "stdout",
            json!({"kind": "file", "path": "/out/"}),
            "not below the output path",
        ),
        (
            "stdout",
            json!({"kind": "file", "path": "/out/a/"}),
            "not below the output path",
        ),
        (
            "stdout",
            json!({"kind": "file", "path": "/out/../etc/x"}),
            "not below the output path",
        ),
    ];
    for (target, mount, words) in cases {
        let error = with(target, mount.clone()).err();
        let error = error.unwrap_or_else(|| panic!("{target} {mount} was accepted"));
        let text = error.to_string();
        assert!(text.contains(words), "{target} {mount}: {text}");
        assert!(text.contains(&format!("mount {target}")), "{text}");
        assert!(error.is_user_error(), "{text}");
    }
}

#[test]
fn the_output_path_must_be_a_mount_that_can_be_written_to() {
    let pdh = json!({"kind": "collection", "portable_data_hash": PDH});
    let text = json!({"kind": "text", "content": ""});
    for mounts in [
        json!({}),
        json!({"/outer": {"kind": "tmp"}}),
        json!({ "/out": pdh }),
        json!({ "/out": text }),
    ] {
        let error = planned(mounts, json!({})).err().unwrap();
        assert!(matches!(error, MountError::NoOutput { .. }), "{error}");
        assert!(error.to_string().contains("/out"));
    }
    let mut writable = pdh;
    writable["writable"] = json!(true);
    for mount in [writable, json!({"kind": "collection", "writable": true})] {
        let plan = planned(json!({ "/out": mount }), json!({})).unwrap();
        assert_eq!(roles(&plan), [("/out", &Role::Output)]);
    }
}

#[test]
fn a_mount_is_bound_or_copied_by_its_place_and_kind() {
    let part = json!({"kind": "collection", "portable_data_hash": PDH});
    let mut copy = part.clone();
    copy["writable"] = json!(true);
    let mut excluded = copy.clone();
    excluded["exclude_from_output"] = json!(true);
    let text = json!({"kind": "text", "content": "x"});
    let plan = planned(
        json!({
            "/tmp": {"kind": "tmp"}, "/new": {"kind": "collection", "writable": true},
            "/in": part, "/in/t": text, "/out": {"kind": "tmp"},
            "/out/ro": part, "/out/ro/t": text, "/out/rw": copy, "/out/rw/t": text,
            "/out/x": excluded, "/out/x/t": text, "/out/t": text,
        }),
        json!({"/key": text, "/out/key": text}),
    )
    .unwrap();
    let inside = |path: &str| Role::Inside(path.to_owned());
    let expected = [
        ("/in", Role::ReadOnly),
        ("/key", Role::ReadOnly),
        ("/new", Role::Writable),
        ("/out", Role::Output),
        ("/tmp", Role::Writable),
        ("/in/t", Role::ReadOnly),
        ("/out/key", Role::ReadOnly),
        ("/out/ro", Role::ReadOnly),
        ("/out/rw", inside("rw")),
        ("/out/t", inside("t")),
        ("/out/x", Role::Writable),
        ("/out/ro/t", Role::Writable),
        ("/out/rw/t", inside("rw/t")),
        ("/out/x/t", Role::Writable),
    ];
    let expected: Vec<_> = expected.iter().map(|(t, r)| (*t, r)).collect();
    assert_eq!(roles(&plan), expected);
}

#[test]
fn nothing_can_be_inside_a_file() {
    let text = json!({"kind": "text", "content": "x"});
    let error = planned(
        json!({"/out": {"kind": "tmp"}, "/f": text, "/f/g": {"kind": "tmp"}}),
        json!({}),
    )
    .err()
    .unwrap();
    assert!(error.to_string().contains("mount /f/g is inside mount /f"));
}

#[test]
fn streams_are_files_of_the_output_that_nothing_covers() {
    let file = |path: &str| json!({"kind": "file", "path": path});
    let plan = with("stdout", file("/out/./a//b.txt")).unwrap();
    assert_eq!(plan.stdout.as_deref(), Some("a/b.txt"));
    assert_eq!(plan.stderr, None);

    let part = json!({"kind": "collection", "portable_data_hash": PDH});
    let mut copy = part.clone();
    copy["writable"] = json!(true);
    let text = json!({"kind": "text", "content": "x"});
    let cases = [
        (part, "/out/m/log", false),
        (copy, "/out/m/log", true),
        (text.clone(), "/out/m", false),
        (text, "/out/m/log", false),
    ];
    for (mount, path, fits) in cases {
        let plan = planned(
            json!({"/out": {"kind": "tmp"}, "/out/m": mount, "stderr": file(path)}),
            json!({}),
        );
        match plan {
            Ok(plan) => assert!(fits && plan.stderr.as_deref() == Some("m/log"), "{mount}"),
            Err(error) => {
                assert!(!fits, "{error}");
                assert!(error.to_string().contains("inside mount /out/m"), "{error}");
            }
        }
    }
}

#[test]
fn stdin_is_text_json_or_a_collections_file() {
    let read = |mount| with("stdin", mount).unwrap().stdin.unwrap();
    assert_eq!(
        read(json!({"kind": "text", "content": "a\n"})),
        Content::File(b"a\n".to_vec())
    );
    assert_eq!(
        read(json!({"kind": "json", "content": [1]})),
        Content::File(b"[1]".to_vec())
    );
    let part = read(json!({"kind": "collection", "portable_data_hash": PDH, "path": "./a/b"}));
    let expected = CollectionPath {
        collection: PDH.to_owned(),
        path: "a/b".to_owned(),
    };
    assert_eq!(part, Content::Collection(expected));
    let secret = json!({"stdin": {"kind": "text", "content": "s"}});
    let plan = planned(json!({"/out": {"kind": "tmp"}}), secret).unwrap();
    assert_eq!(plan.stdin, Some(Content::File(b"s".to_vec())));
}

#[test]
fn a_collection_is_named_with_or_without_a_path() {
    let cases = [
        (json!({"portable_data_hash": PDH}), PDH, ""),
        (
            json!({"portable_data_hash": PDH, "path": "./dir/"}),
            PDH,
            "dir",
        ),
        (
            json!({"portable_data_hash": PDH, "path": "/dir/f"}),
            PDH,
            "dir/f",
        ),
        (
            json!({"portable_data_hash": format!("{PDH}/a"), "path": "b"}),
            PDH,
            "a/b",
        ),
        (json!({"uuid": UUID, "path": "x"}), UUID, "x"),
    ];
    for (mut mount, collection, path) in cases {
        mount["kind"] = json!("collection");
        let plan = with("/in", mount.clone()).unwrap();
        let expected = Content::Collection(CollectionPath {
            collection: collection.to_owned(),
            path: path.to_owned(),
        });
        assert_eq!(plan.items[0].content, expected, "{mount}");
    }
}

#[test]
fn secrets_are_text_or_json_and_no_regular_mount() {
    let out = json!({"/out": {"kind": "tmp"}, "/k": {"kind": "text", "content": ""}});
    let error = planned(out.clone(), json!({"/k": {"kind": "text", "content": "s"}}));
    assert!(error.err().unwrap().to_string().contains("both a secret"));
    let error = planned(out.clone(), json!({"/s": {"kind": "tmp"}}));
    assert!(
        error
            .err()
            .unwrap()
            .to_string()
            .contains("mount /s has kind \"tmp\"")
    );
    let plan = planned(out, json!({"/s": {"kind": "json", "content": "hidden"}})).unwrap();
    let shown = format!(
        "{:?}",
        plan.items.iter().map(|i| &i.content).collect::<Vec<_>>()
    );
    assert!(!shown.contains("hidden"), "{shown}");
}

#[test]
fn certificates_are_given_only_for_the_api_and_only_if_none_are() {
    let mounts = |with_own: bool| {
        let mut mounts = json!({"/out": {"kind": "tmp"}});
        if with_own {
            mounts[certificates::TARGET] = json!({"kind": "text", "content": "own"});
        }
        mounts
    };
    for (own, api, expected) in [
        (false, true, true),
        (true, true, false),
        (false, false, false),
    ] {
        let container: Container = serde_json::from_value(json!({
            "uuid": "zzzzz-dz642-0123456789abcde", "output_path": "/out", "mounts": mounts(own),
        }))
        .unwrap();
        let plan = plan(&container, &BTreeMap::new(), api).unwrap();
        assert_eq!(plan.certificates, expected);
    }
}
