//! Manifests as a whole: what is read, written and refused, and what holds for every manifest.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const FOO: &str = "acbd18db4cc2f85cedef654fccc4a4d8+3";
const BAR: &str = "37b51d194a7513e45b56f6524f2d51f2+3";
const EMPTY: &str = "d41d8cd98f00b204e9800998ecf8427e+0";

fn read(text: &str) -> Manifest {
    Manifest::parse(text).unwrap()
}

fn paths(manifest: &Manifest) -> Vec<String> {
    manifest.files().map(|f| f.path).collect()
}

/// The extents of a file as `hash-prefix:offset:len`.
fn layout(manifest: &Manifest, path: &str) -> Vec<String> {
    match manifest.tree().lookup(path) {
        Some(Entry::File(extents)) => extents
            .iter()
            .map(|e| {
                format!(
                    "{}:{}:{}",
                    &e.locator.hash.to_string()[..3],
                    e.offset,
                    e.len
                )
            })
            .collect(),
        other => panic!("{path} is {other:?}"),
    }
}

#[test]
fn the_empty_text_is_the_empty_collection() {
    let manifest = read("");
    assert!(manifest.is_empty());
    assert_eq!(manifest.file_count(), 0);
    assert_eq!(manifest.to_string(), "");
    assert_eq!(manifest.pdh().as_str(), EMPTY);
}

#[test]
fn malformed_manifests_are_refused_with_line_and_token() {
    let ok = format!(". {FOO} 0:3:ok\n");
    let cases = [
        (format!(". {FOO} 0:3:a"), "does not end in a newline"),
        (
            "\n".into(),
            "line 1 of the manifest, at \"\": the line is empty",
        ),
        (
            format!("{ok}\n{ok}"),
            "line 2 of the manifest, at \"\": the line is empty",
        ),
        (format!("{ok}. {FOO}  0:3:a\n"), "exactly one space"),
        (format!("{ok} . {FOO} 0:3:a\n"), "stream name"),
        (
            format!("{ok}a {FOO} 0:3:a\n"),
            "line 2 of the manifest, at \"a\": a stream name",
        ),
        (format!("/a {FOO} 0:3:a\n"), "stream name"),
        (format!(".a {FOO} 0:3:a\n"), "stream name"),
        (format!("./ {FOO} 0:3:a\n"), "empty part"),
        (format!(".//a {FOO} 0:3:a\n"), "empty part"),
        (format!("./a/ {FOO} 0:3:a\n"), "empty part"),
        (format!("./a/.. {FOO} 0:3:a\n"), "cannot be names"),
        (format!("./\\056\\056 {FOO} 0:3:a\n"), "cannot be names"),
        (". 0:0:a\n".into(), "no block locator"),
        (format!(". {FOO}\n"), "no file"),
        (format!(". {FOO} 0:3:a {FOO}\n"), "position:length:name"),
        (format!(". {FOO}+bad 0:3:a\n"), "malformed hint"),
        (
            ". acbd18db4cc2f85cedef654fccc4a4d8 0:3:a\n".into(),
            "no size",
        ),
        (
            format!(". {FOO} 0:4:a\n"),
            "ends at byte 4, but the stream has only 3",
        ),
        (format!(". {FOO} 4:0:a\n"), "ends at byte 4"),
        (
            format!(". {FOO} 18446744073709551615:2:a\n"),
            "the stream has only 3",
        ),
        (format!(". {FOO} -1:2:a\n"), "position:length:name"),
        (format!(". {FOO} 0:3\n"), "position:length:name"),
        (format!(". {FOO} 0:3:\n"), "must not be empty"),
        (format!(". {FOO} 0:3:/a\n"), "must not be empty"),
        (format!(". {FOO} 0:3:a/\n"), "empty part"),
        (format!(". {FOO} 0:3:.\n"), "cannot be names"),
        (format!(". {FOO} 0:3:a/../b\n"), "cannot be names"),
        (format!(". {FOO} 0:3:a\tb\n"), "white space"),
        (format!(". {FOO} 0:3:a\\b\n"), "backslash"),
        (format!(". {FOO} 0:3:\\377\n"), "not UTF-8"),
        (format!(". {FOO} 0:3:a 0:3:a/b\n"), "also a directory"),
        (
            format!(". {FOO} 0:3:a\n./a/b {FOO} 0:3:c\n"),
            "also a directory",
        ),
        (
            format!(". {0}+18446744073709551615 {0}+1 0:1:a\n", &FOO[..32]),
            "more than 2^64",
        ),
    ];
    for (text, expected) in cases {
        let error = Manifest::parse(&text).expect_err(&text).to_string();
        assert!(error.contains(expected), "{text:?} gave {error:?}");
    }
}

#[test]
fn a_manifest_made_to_expand_without_end_is_refused() {
    let mut text = String::from(".");
    for _ in 0..5000 {
        text.push_str(&format!(" {FOO}"));
    }
    for n in 0..5000 {
        text.push_str(&format!(" 0:15000:{n}"));
    }
    text.push('\n');
    assert!(matches!(
        Manifest::parse(&text),
        Err(ManifestError::TooManyExtents { .. })
    ));
}

#[test]
fn denormalised_manifests_are_accepted_and_brought_into_order() {
    let text = format!(
        "./z {BAR}+A1@2 {FOO} 3:3:b 0:2:a 2:1:a\n. {FOO} {EMPTY} {BAR} 0:0:none 2:2:dir/x 0:1:q\n./z {FOO} 0:3:a\n"
    );
    let manifest = read(&text);
    assert_eq!(manifest.to_string(), text);
    assert_eq!(manifest.file_count(), 5);
    assert_eq!(manifest.total_size(), 3 + 3 + 2 + 1 + 3);
    assert_eq!(
        manifest.tree().to_manifest().to_string(),
        format!(
            ". {FOO} 0:0:none 0:1:q\n./dir {FOO} {BAR} 2:2:x\n./z {BAR}+A1@2 {FOO} 0:6:a 3:3:b\n"
        )
    );
    assert_eq!(layout(&manifest, "dir/x"), ["acb:2:1", "37b:0:1"]);
    assert_eq!(layout(&manifest, "z/a"), ["37b:0:3", "acb:0:3"]);
}

#[test]
fn blocks_used_twice_appear_once_and_unused_ones_not_at_all() {
    let manifest = read(&format!(". {FOO} {BAR} {FOO} 0:3:a 6:3:b 7:1:c\n"));
    assert_eq!(
        manifest.tree().to_manifest().to_string(),
        format!(". {FOO} 0:3:a 0:3:b 1:1:c\n")
    );
}

#[test]
fn empty_directories_are_kept_while_nothing_else_shows_them() {
    let text = format!("./a {EMPTY} 0:0:\\056\n./b {EMPTY} 0:0:\\056\n./b/c {EMPTY} 0:0:f\n");
    let manifest = read(&text);
    assert_eq!(manifest.file_count(), 1);
    assert_eq!(manifest.to_string(), text);
    assert_eq!(
        manifest.tree().to_manifest().to_string(),
        format!("./a {EMPTY} 0:0:\\056\n./b/c {EMPTY} 0:0:f\n")
    );
    assert_eq!(manifest.tree().list("a"), Some(BTreeMap::new()));
    let mut builder = ManifestBuilder::new();
    builder.add_tree("x", &manifest.tree()).unwrap();
    assert_eq!(builder.tree().lookup("x/a"), Some(Entry::Directory));
}

#[test]
fn the_portable_data_hash_is_the_one_other_implementations_compute() {
    let signed = format!(". {FOO}+A{}@65f5e100 0:3:foo\n", "0".repeat(40));
    let plain = format!(". {FOO} 0:3:foo\n");
    let pdh = "1f4b0bc7583c2a7f9102c395f4ffc5e3+45";
    assert_eq!(read(&signed).pdh().as_str(), pdh);
    assert_eq!(portable_data_hash(&plain).as_str(), pdh);
    assert_eq!(read(&signed).stripped().to_string(), plain);
}

#[test]
fn directories_can_be_listed_and_paths_looked_up() {
    let manifest = read(&format!(
        ". {FOO} 0:3:top 0:1:d/one\n./d-e {FOO} 0:1:x\n./d/sub/deep {BAR} 0:2:two\n"
    ));
    let tree = manifest.tree();
    let list = |path: &str| {
        let entries = tree.list(path).unwrap().into_iter();
        entries
            .map(|(name, kind)| match kind {
                EntryKind::File { size } => format!("{name} {size}"),
                EntryKind::Directory => format!("{name}/"),
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(list(""), ["d/", "d-e/", "top 3"]);
    assert_eq!(list("./d/"), ["one 1", "sub/"]);
    assert_eq!(list("d/sub"), ["deep/"]);
    assert_eq!(tree.lookup("d/sub"), Some(Entry::Directory));
    assert!(matches!(
        tree.lookup("/d/sub/deep/two"),
        Some(Entry::File(_))
    ));
    for missing in ["x", "d/o", "d/sub/deep/two/x", "top/x", "d/../top"] {
        assert_eq!(tree.lookup(missing), None, "{missing}");
    }
    assert_eq!(tree.list("top"), None);
}

#[test]
fn a_subtree_has_the_directory_or_file_as_its_root() {
    let manifest = read(&format!(
        ". {FOO} {BAR} 0:3:top 3:2:d/one\n./d/sub {BAR} 0:2:two\n./de {FOO} 0:1:x\n"
    ));
    let text = |path: &str| {
        manifest
            .tree()
            .subtree(path)
            .unwrap()
            .to_manifest()
            .to_string()
    };
    assert_eq!(text("d"), format!(". {BAR} 0:2:one\n./sub {BAR} 0:2:two\n"));
    assert_eq!(text("./d/sub/two"), format!(". {BAR} 0:2:two\n"));
    assert_eq!(text("."), manifest.tree().to_manifest().to_string());
    let error = manifest.tree().subtree("d/none").unwrap_err().to_string();
    assert_eq!(error, "there is no \"d/none\" in the collection");
}

#[test]
fn merging_joins_directories_and_appends_files_of_the_same_path() {
    let one = read(&format!(". {FOO} 0:3:a\n./d {FOO} 0:3:x\n"));
    let two = read(&format!(". {BAR} 0:3:a\n./d {BAR} 0:3:y\n"));
    assert_eq!(
        Manifest::merged([&one, &two]).unwrap().to_string(),
        format!(". {FOO} {BAR} 0:6:a\n./d {FOO} {BAR} 0:3:x 3:3:y\n")
    );
    let clash = read(&format!(". {FOO} 0:3:d\n"));
    for pair in [[&one, &clash], [&clash, &one]] {
        let error = Manifest::merged(pair).unwrap_err();
        assert_eq!(error, ManifestError::FileAndDirectory { path: "d".into() });
    }
}

#[test]
fn the_builder_places_files_and_refuses_what_cannot_be() {
    let block = Arc::new(Locator::parse(FOO).unwrap());
    let mut builder = ManifestBuilder::new();
    let whole = |locator: &Arc<Locator>| Extent {
        locator: locator.clone(),
        offset: 0,
        len: locator.size,
    };
    builder.add_file("./b dir//x:y", [whole(&block)]).unwrap();
    builder.add_file("none", []).unwrap();
    builder.add_dir_placeholder("void").unwrap();
    builder.add_dir_placeholder("/").unwrap();
    let text =
        format!(". {EMPTY} 0:0:none\n./b\\040dir {FOO} 0:3:x\\072y\n./void {EMPTY} 0:0:.keep\n");
    assert_eq!(builder.build().to_string(), text);
    assert_eq!(read(&text), builder.build());

    let too_long = Extent {
        locator: block,
        offset: 1,
        len: 3,
    };
    assert!(matches!(
        builder.add_file("long", [too_long]),
        Err(ManifestError::OutsideBlock {
            end: 4,
            size: 3,
            ..
        })
    ));
    for bad in ["", "/", "a/", "../a", "none/x", "void", "b dir"] {
        assert!(builder.add_file(bad, []).is_err(), "{bad:?} was accepted");
    }
    assert_eq!(
        builder.build().to_string(),
        text,
        "a refused file left something behind"
    );
}

#[test]
fn mapping_locators_changes_hints_only() {
    let manifest = read(&format!(". {FOO}+K@zzzzz {BAR} 0:6:a\n"));
    let signed = manifest.map_locators(|l| l.sign(b"key", "token", 1, 2));
    assert_eq!(signed.pdh(), manifest.pdh());
    assert!(signed.locators().all(|l| l.signature().is_some()));
    let other = manifest.map_locators(|_| Locator::empty());
    assert_eq!(other, manifest.stripped());
}

fn locator() -> impl Strategy<Value = Locator> {
    let hint = prop_oneof![Just("K@zzzzz".to_owned()), "A[0-9a-f]{40}@[0-9a-f]{8}"];
    // Few distinct contents, so that blocks repeat.
    (0u8..6, vec(hint, 0..2)).prop_map(|(n, hints)| Locator {
        hints,
        ..Locator::of(&vec![n; usize::from(n) * 3])
    })
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[a-c]", 1 => "[^/]{1,6}"].prop_filter("not a file name", |name: &String| {
        name != "." && name != ".."
    })
}

/// One stream in any order, with any overlap; directories and files have different names so that
/// they never clash.
fn stream() -> impl Strategy<Value = Stream> {
    let dirs = vec(name().prop_map(|n| format!("d{n}")), 0..3);
    let file = (vec(name().prop_map(|n| format!("d{n}")), 0..2), name());
    let segments = vec((any::<(u64, u64)>(), file), 1..6);
    (dirs, vec(locator(), 1..5), segments).prop_map(|(dirs, blocks, segments)| {
        let size: u64 = blocks.iter().map(|b| b.size).sum();
        let mut name = String::from(".");
        dirs.iter().for_each(|d| name.extend(["/", d]));
        let segments = segments.into_iter().map(|((a, b), (dirs, file))| {
            let position = a % (size + 1);
            let mut name = dirs.join("/");
            if !name.is_empty() {
                name.push('/');
            }
            name.push_str(&format!("f{file}"));
            Segment {
                position,
                length: b % (size - position + 1),
                name,
            }
        });
        Stream {
            name,
            segments: segments.collect(),
            blocks: blocks.into_iter().map(Arc::new).collect(),
        }
    })
}

fn manifest() -> impl Strategy<Value = Manifest> {
    vec(stream(), 0..4).prop_map(|streams| Manifest { streams })
}

/// The files with their pieces, without signatures.
fn contents(manifest: &Manifest) -> Vec<FileEntry> {
    let mut files: Vec<_> = manifest.stripped().files().collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

proptest! {
    #[test]
    fn what_is_written_reads_back_the_same(manifest in manifest()) {
        prop_assert_eq!(Manifest::parse(&manifest.to_string()).unwrap(), manifest);
    }

    #[test]
    fn normalising_keeps_every_byte_and_twice_is_once(manifest in manifest()) {
        let once = manifest.tree().to_manifest();
        prop_assert_eq!(contents(&once), contents(&manifest));
        prop_assert_eq!(once.file_count(), manifest.file_count());
        prop_assert_eq!(once.total_size(), manifest.total_size());
        prop_assert_eq!(&once.tree().to_manifest(), &once);
        prop_assert_eq!(Manifest::parse(&once.to_string()).unwrap(), once);
    }

    #[test]
    fn the_hash_does_not_depend_on_signatures(manifest in manifest()) {
        let signed = manifest.map_locators(|l| l.sign(b"key", "token", 7, 8));
        prop_assert_eq!(signed.pdh(), manifest.stripped().pdh());
        prop_assert_eq!(signed.pdh(), manifest.pdh());
        prop_assert_eq!(signed.tree().to_manifest().pdh(), manifest.tree().to_manifest().pdh());
    }

    #[test]
    fn subtrees_put_back_in_their_places_make_the_whole(manifest in manifest()) {
        let mut builder = ManifestBuilder::new();
        let tree = manifest.tree();
        for (name, kind) in tree.list("").unwrap() {
            let at = if kind == EntryKind::Directory { name } else { "." };
            builder.add_tree(at, &tree.subtree(name).unwrap()).unwrap();
        }
        prop_assert_eq!(builder.build(), manifest.tree().to_manifest());
        prop_assert_eq!(paths(&builder.build()).len() as u64, manifest.file_count());
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = Manifest::parse(&text);
    }

    #[test]
    fn what_looks_like_a_manifest_is_read_whole_or_refused(
        tokens in vec(prop_oneof![
            Just(". ".to_owned()), Just("./a ".to_owned()), Just(format!("{FOO} ")), Just("\n".to_owned()),
            Just("0:3:".to_owned()), "[a-z/.:\\\\0-9 ]{0,4}", "[0-9]{1,20}:[0-9]{1,20}:x ",
        ], 0..20)
    ) {
        let text = tokens.concat();
        if let Ok(manifest) = Manifest::parse(&text) {
            prop_assert_eq!(Manifest::parse(&manifest.to_string()).unwrap(), manifest.clone());
            prop_assert_eq!(contents(&manifest.tree().to_manifest()), contents(&manifest));
        }
    }
}
