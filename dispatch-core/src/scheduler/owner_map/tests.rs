//! Tests of the lines of an owner map, and of what they give to whom.

use super::*;

const USER: &str = "zzzzz-tpzed-000000000000001";
const PROJECT: &str = "zzzzz-j7d0g-000000000000001";

fn any(argument: &str) -> Result<(), String> {
    match argument.starts_with("--") {
        true => Ok(()),
        false => Err(format!("{argument:?} is no option")),
    }
}

fn owner(username: &str, user: &str, project: Option<&str>) -> Owner {
    Owner {
        user: UserUuid::parse(user).ok(),
        username: Some(username.to_owned()),
        project: project.map(|project| GroupUuid::parse(project).unwrap()),
        project_name: Some("ada".to_owned()),
    }
}

fn map(text: &str) -> (tempfile::TempDir, Result<OwnerMap, String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("map");
    fs::write(&path, text).unwrap();
    let map = OwnerMap::open(&path, any).map_err(|error| error.to_string());
    (dir, map)
}

#[test]
fn the_first_line_that_matches_counts() {
    let text = format!(
        "# who  arguments\n\n{PROJECT}  --account=proteomics\nada  --account=genomics '--qos=a b'\n\
         {USER} --account=by-uuid\nbob\n*  --account=guests\n"
    );
    let (_dir, map) = map(&text);
    let map = map.unwrap();
    let other = "zzzzz-tpzed-000000000000002";
    #[rustfmt::skip]
    let rows = [
        (Some(owner("ada", other, Some(PROJECT))), vec!["--account=proteomics"]),
        (Some(owner("ada", USER, None)), vec!["--account=genomics", "--qos=a b"]),
        (Some(owner("eve", USER, None)), vec!["--account=by-uuid"]),
        // A line without arguments keeps the later ones away.
        (Some(owner("bob", other, None)), vec![]),
        (Some(owner("eve", other, None)), vec!["--account=guests"]),
        (None, vec!["--account=guests"]),
    ];
    for (owner, expected) in rows {
        assert_eq!(*map.arguments(owner.as_ref()), *expected, "{owner:?}");
    }
}

#[test]
fn owners_with_the_same_arguments_are_charged_alike() {
    let text = "ada weight=3 --account=bio\nbob --account=bio\neve --account=%u\n* --qos=%g%P\n";
    let (_dir, map) = map(text);
    let map = map.unwrap();
    let more = ["--wckey=%u %C".to_owned()];
    let charged = |name: &str, templates: &[String]| {
        let owner = Arc::new(owner(name, USER, Some(PROJECT)));
        charge(Some(&map), templates.iter(), Some(owner))
    };
    let [ada, bob, eve, dan] = ["ada", "bob", "eve", "dan"].map(|name| charged(name, &[]));
    assert_eq!(
        (ada.account.as_str(), ada.weight.get()),
        ("--account=bio", 3)
    );
    assert!(ada == bob && bob.weight == Weight::MIN && ada != eve);
    assert_eq!(eve.account, "--account=eve");
    assert_eq!(dan.account, format!("--qos={PROJECT}%P"));
    assert_ne!(charged("ada", &more), charged("bob", &more));
    assert_eq!(
        charged("bob", &more).account,
        "--account=bio --wckey=bob %C"
    );
    // What is not known of an owner is no part of an argument.
    assert_eq!(charge(Some(&map), more.iter(), None).account, "");
}

#[test]
fn a_wrong_line_is_named() {
    #[rustfmt::skip]
    let rows = [
        ("ada --account=a\nbob -x\n", "line 2: \"-x\" is no option"),
        ("ada '--account=a\n", "line 1: a quote is not closed"),
        ("'ada lovelace' --account=a\n", "line 1: \"ada lovelace\" is neither a user name"),
        ("'' --account=a\n", "line 1: \"\" is neither"),
        ("ada weight=0 --account=a\n", "line 1: \"weight=0\" is no weight from 1 to 1000"),
        ("ada weight=1001\n", "no weight from 1 to 1000"),
        ("ada weight=-1\n", "no weight"),
        ("ada weight=1.5\n", "no weight"),
        ("ada --account=a weight=2\n", "\"weight=2\" is no option"),
        ("* --account=a\nada --account=b\n", "line 2: a line after that of * is never used"),
    ];
    for (text, words) in rows {
        let (_dir, map) = map(text);
        let error = map.unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let (_dir, empty) = map("# nobody\n");
    assert!(empty.unwrap_err().contains("has no line"));
    // A full disk, or an editor at work: the account would be another one.
    let (_dir, cut) = map("* --account=genom");
    assert!(cut.unwrap_err().contains("is the file complete"));
    let (_dir, mail) = map("ada@example.org --account=a\n");
    assert!(mail.unwrap_err().contains("neither a user name"));
    let missing = OwnerMap::open(Path::new("/nowhere/map"), any).unwrap_err();
    assert!(missing.to_string().contains("/nowhere/map"), "{missing}");
    let folder = OwnerMap::open(Path::new("/"), any).unwrap_err();
    assert!(folder.to_string().contains("no file"), "{folder}");
}

#[tokio::test]
async fn a_changed_file_is_read_and_a_wrong_one_changes_nothing() {
    let (dir, map) = map("* --account=a\n");
    let map = Arc::new(map.unwrap());
    let path = dir.path().join("map");
    let account = || map.arguments(None).first().cloned();
    let write = |text: &str| {
        // As admins do: a new file under the same name.
        let new = dir.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &path).unwrap();
    };
    map.refresh().await;
    assert_eq!(account().as_deref(), Some("--account=a"));
    write("* --account=b\n");
    map.refresh().await;
    assert_eq!(account().as_deref(), Some("--account=b"));
    // In place, and with the time of another file.
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, "* --account=d\n").unwrap();
    fs::File::open(&path).unwrap().set_modified(time).unwrap();
    map.refresh().await;
    assert_eq!(account().as_deref(), Some("--account=d"));
    write("* --account=b\n");
    map.refresh().await;
    write("");
    map.refresh().await;
    assert_eq!(account().as_deref(), Some("--account=b"));
    write("* wrong\n");
    map.refresh().await;
    assert_eq!(account().as_deref(), Some("--account=b"));
    fs::remove_file(&path).unwrap();
    map.refresh().await;
    assert_eq!(account().as_deref(), Some("--account=b"));
    write("* --account=c\n");
    map.refresh().await;
    assert_eq!(account().as_deref(), Some("--account=c"));
}
