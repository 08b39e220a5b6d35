//! Specifications in the vendors' form, and broken ones.

use super::*;

const NVIDIA: &str = r#"
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
  - name: "0"
    containerEdits:
      deviceNodes:
        - path: /dev/null
          hostPath: /dev/zero
          permissions: rw
          gid: 44
          fileMode: 432
  - name: GPU-aabb
    containerEdits: {env: ["WHICH=aabb"]}
  - name: GPU-aacc
    containerEdits: {}
containerEdits:
  env: ["NVIDIA_VISIBLE_DEVICES=void", "EMPTY="]
  deviceNodes: [{path: /dev/full}]
  mounts:
    - {hostPath: /etc/passwd, containerPath: /opt/ro, options: [ro, nosuid, bind]}
    - {hostPath: /etc, containerPath: /opt/rw, options: [rw, rbind]}
    - {hostPath: tmpfs, containerPath: /run/x, type: tmpfs}
  hooks:
    - {hookName: createContainer, path: /usr/bin/nvidia-ctk, args: [nvidia-ctk, hook], timeout: 5}
    - {hookName: poststop, path: /bin/true}
  additionalGids: [0, 7]
"#;

struct Dirs(tempfile::TempDir);

impl Dirs {
    /// Files by `directory/name`.
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(dir)
    }

    fn registry(&self) -> Registry {
        Registry::read(&["a", "b"].map(|name| self.0.path().join(name)))
    }
}

fn json(kind: &str, names: &[&str]) -> String {
    let devices: Vec<_> = names
        .iter()
        .map(|name| serde_json::json!({"name": name, "containerEdits": {"env": ["A=b"]}}))
        .collect();
    serde_json::json!({"cdiVersion": "1.0.0", "kind": kind, "devices": devices}).to_string()
}

#[test]
fn all_that_belongs_to_a_device_is_taken() {
    let dirs = Dirs::new(&[("a/nvidia.yaml", NVIDIA)]);
    let registry = dirs.registry();
    let access = registry
        .access(&["nvidia.com/gpu=0".into(), "nvidia.com/gpu=GPU-aabb".into()])
        .unwrap();
    let nodes: Vec<_> = access
        .devices
        .iter()
        .map(|n| {
            let paths = (n.path.to_str().unwrap(), n.host.to_str().unwrap());
            (paths, (n.major, n.minor), n.access.as_str(), n.gid, n.mode)
        })
        .collect();
    assert_eq!(
        nodes,
        [
            (("/dev/full", "/dev/full"), (1, 7), "rwm", 0, 0o666),
            (("/dev/null", "/dev/zero"), (1, 5), "rw", 44, 0o660),
        ]
    );
    let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        access.environment,
        [
            text("NVIDIA_VISIBLE_DEVICES", "void"),
            text("EMPTY", ""),
            text("WHICH", "aabb")
        ]
    );
    let binds: Vec<_> = access
        .binds
        .iter()
        .map(|b| (b.target.to_str().unwrap(), b.writable))
        .collect();
    assert_eq!(binds, [("/opt/ro", false), ("/opt/rw", true)]);
    let hooks = serde_json::to_value(access.hooks.as_ref().unwrap()).unwrap();
    assert_eq!(
        hooks,
        serde_json::json!({
            "createContainer": [{"path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "hook"], "timeout": 5}],
            "poststop": [{"path": "/bin/true"}],
        })
    );
    assert_eq!(access.groups().into_iter().collect::<Vec<_>>(), [0, 7, 44]);
    assert_eq!(access.warnings.len(), 1);
    assert!(access.warnings[0].contains("/run/x"));
}

#[test]
fn a_device_is_found_by_its_name_or_the_only_beginning_of_its_uuid() {
    let dirs = Dirs::new(&[
        ("a/nvidia.yaml", NVIDIA),
        ("a/other.json", &json("lab.example/gpu", &["0", "7"])),
        ("a/notes.txt", "no specification"),
    ]);
    let registry = dirs.registry();
    let kinds = ["nvidia.com/gpu"];
    for (id, expected) in [
        ("0", Some("nvidia.com/gpu=0")),
        ("GPU-aabb", Some("nvidia.com/gpu=GPU-aabb")),
        ("GPU-aab", Some("nvidia.com/gpu=GPU-aabb")),
        ("GPU-aa", None),
        ("GPU-dd", None),
        ("7", None),
        ("lab.example/gpu=7", Some("lab.example/gpu=7")),
        ("lab.example/gpu=8", None),
    ] {
        assert_eq!(registry.find(id, &kinds).as_deref(), expected, "{id}");
    }
    assert!(registry.describes(&kinds));
    assert!(!registry.describes(&["amd.com/gpu"]));
    assert!(registry.has_all(&["lab.example/gpu=7".to_owned()]));
    assert!(!registry.has_all(&["lab.example/gpu=8".to_owned()]));
    assert!(!registry.has_all(&[]));
}

#[test]
fn a_node_finds_the_whole_gpu_and_no_slice_of_one() {
    let device = |name: &str, nodes: &[&str]| {
        let nodes: Vec<_> = nodes
            .iter()
            .map(|path| serde_json::json!({"path": path}))
            .collect();
        serde_json::json!({"name": name, "containerEdits": {"deviceNodes": nodes}})
    };
    let spec = serde_json::json!({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [
        device("all", &["/dev/nvidia1"]),
        device("0", &["/dev/nvidia1", "/dev/nvidia-uvm", "/dev/dri/card1"]),
        device("1:0", &["/dev/nvidia2", "/dev/nvidia-caps/nvidia-cap3"]),
        device("both", &["/dev/nvidia4", "/dev/nvidia5"]),
    ]});
    let dirs = Dirs::new(&[("a/nvidia.json", &spec.to_string())]);
    let registry = dirs.registry();
    for (node, expected) in [
        ("/dev/nvidia1", Some("nvidia.com/gpu=0")),
        ("/dev/nvidia2", None),
        ("/dev/nvidia4", None),
        ("/dev/nvidia9", None),
    ] {
        let found = registry.with_node(&["nvidia.com/gpu"], node);
        assert_eq!(found.as_deref(), expected, "{node}");
    }
}

#[test]
fn the_later_directory_wins_and_two_of_the_same_name_in_one_are_refused() {
    let other = json("lab.example/gpu", &["0"]).replace("A=b", "A=later");
    let dirs = Dirs::new(&[
        ("a/x.json", &json("lab.example/gpu", &["0", "1"])),
        ("a/y.json", &json("lab.example/gpu", &["1"])),
        ("b/x.json", &other),
    ]);
    let registry = dirs.registry();
    let access = registry.access(&["lab.example/gpu=0".into()]).unwrap();
    assert_eq!(access.environment, [("A".to_owned(), "later".to_owned())]);
    let error = registry.access(&["lab.example/gpu=1".into()]).unwrap_err();
    assert!(error.to_string().contains("two CDI specifications"));
}

#[test]
fn what_cannot_be_used_is_said() {
    for (edits, expected) in [
        (
            r#"{"deviceNodes": [{"path": "/dev/no-such-gpu"}]}"#,
            "/dev/no-such-gpu",
        ),
        (
            r#"{"deviceNodes": [{"path": "/etc/passwd"}]}"#,
            "not a device",
        ),
        (
            r#"{"deviceNodes": [{"path": "/dev/null", "major": 1, "minor": 9}]}"#,
            "1:3",
        ),
        (
            r#"{"deviceNodes": [{"path": "/dev/null", "type": "p"}]}"#,
            "type \"p\"",
        ),
        (
            r#"{"mounts": [{"hostPath": "/no/such/lib", "containerPath": "/x"}]}"#,
            "/no/such/lib",
        ),
        (
            r#"{"hooks": [{"hookName": "whenever", "path": "/x"}]}"#,
            "\"whenever\"",
        ),
    ] {
        let spec = format!(
            r#"{{"cdiVersion": "0.6.0", "kind": "lab.example/gpu", "devices": [{{"name": "0", "containerEdits": {edits}}}]}}"#
        );
        let dirs = Dirs::new(&[("a/x.json", &spec)]);
        let refused = dirs.registry().access(&["lab.example/gpu=0".into()]);
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("a/x.json"), "{error}");
        assert!(
            error.starts_with("GPU lab.example/gpu=0 was granted"),
            "{error}"
        );
    }
}

#[test]
fn a_broken_file_is_named_where_it_matters() {
    let many: Vec<String> = (0..20).map(|n| format!("d{n:02}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (text, expected) in [
        ("{", "x.json cannot be used"),
        ("kind: a/b", "cdiVersion"),
        (r#"{"cdiVersion": "2.0.0", "kind": "a/b"}"#, "version 2.0.0"),
        (
            r#"{"cdiVersion": "0.6.0", "kind": "gpu"}"#,
            "not vendor/class",
        ),
    ] {
        let dirs = Dirs::new(&[
            ("a/x.json", text),
            ("b/y.json", &json("lab.example/gpu", &many)),
        ]);
        let reason = dirs.registry().not_described();
        assert!(reason.contains(expected), "{reason}");
        assert!(reason.contains("d15 and 4 more"), "{reason}");
    }
    let none = Registry::read(&["/no/such/dir".into()]);
    let reason = none.not_described();
    assert!(reason.contains("/no/such/dir) do not describe it; they describe no device at all"));
}

#[test]
fn a_full_name_is_told_from_an_index_and_a_uuid() {
    for (id, expected) in [
        ("nvidia.com/gpu=0", true),
        ("lab.example/gpu=all", true),
        ("0", false),
        ("GPU-aabb", false),
        ("MIG-GPU-aabb/1/0", false),
        ("gpu=0", false),
        ("a/b=", false),
    ] {
        assert_eq!(is_full_name(id), expected, "{id}");
    }
}
