//! Serves read-only collections through arv-mount (`--mount-method=arv-mount`), for sites whose
//! containers read only parts of their inputs. This file builds the arguments; [`process`] runs the
//! program.

mod mount_point;
mod process;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use arvados_client::resources::RuntimeConstraints;

pub use mount_point::detach;
pub use process::{ArvMount, ArvMountError, MountEnvironment};

/// Name of the program, searched in PATH.
const PROGRAM: &str = "arv-mount";
/// Directory of its tree that has every collection under its portable data hash.
const BY_ID: &str = "by_id";
/// Timeout of an unmount in seconds.
const UNMOUNT_SECONDS: u32 = 8;
/// Storage class if the container names none.
const DEFAULT_CLASS: &str = "default";

/// Options from the record and the flags.
#[derive(Debug)]
pub struct Request<'a> {
    pub storage_classes: &'a [String],
    pub constraints: &'a RuntimeConstraints,
    pub statistics_period: Duration,
    /// Whether processes of other users need access.
    pub allow_other: bool,
    /// Directory of the disk cache.
    pub cache_dir: &'a Path,
}

/// The arguments in upstream's order.
fn arguments(request: &Request<'_>, tree: &Path) -> Vec<OsString> {
    let classes = match request.storage_classes {
        [] => DEFAULT_CLASS.to_owned(),
        classes => classes.join(","),
    };
    let seconds = request.statistics_period.as_secs();
    let interval = format!("--crunchstat-interval={seconds}");
    let mut all: Vec<OsString> = ["--foreground", "--read-write", "--storage-classes"]
        .map(OsString::from)
        .to_vec();
    all.extend([classes.into(), interval.into()]);
    let mut add = |words: &[&str]| all.extend(words.iter().map(OsString::from));
    if request.allow_other {
        add(&["--allow-other"]);
    }
    let needs = request.constraints;
    if needs.keep_cache_disk > 0 {
        add(&["--disk-cache", "--disk-cache-dir"]);
        all.push(request.cache_dir.into());
        all.extend([
            "--file-cache".into(),
            needs.keep_cache_disk.to_string().into(),
        ]);
    } else if needs.keep_cache_ram > 0 {
        let bytes = needs.keep_cache_ram.to_string();
        add(&["--ram-cache", "--file-cache", &bytes]);
    }
    // Collections named by uuid are bound by portable data hash, so that their content stays the
    // same.
    all.extend(
        [
            "--mount-by-pdh",
            BY_ID,
            "--disable-event-listening",
            "--mount-by-id",
            "by_uuid",
        ]
        .map(OsString::from),
    );
    all.push(tree.into());
    all
}

fn unmount_arguments(tree: &Path) -> Vec<OsString> {
    let argument = format!("--unmount-timeout={UNMOUNT_SECONDS}");
    vec![argument.into(), "--unmount".into(), tree.into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arv_mount_gets_the_arguments_of_upstream() {
        let last = "--mount-by-pdh by_id --disable-event-listening --mount-by-id by_uuid /j/keep";
        for (classes, constraints, seconds, allow_other, expected) in [
            (
                &[][..],
                serde_json::json!({}),
                10,
                false,
                "default --crunchstat-interval=10",
            ),
            (
                &["hot", "archive"],
                serde_json::json!({}),
                0,
                true,
                "hot,archive --crunchstat-interval=0 --allow-other",
            ),
            (
                &["default"],
                serde_json::json!({"keep_cache_ram": 512}),
                5,
                false,
                "default --crunchstat-interval=5 --ram-cache --file-cache 512",
            ),
            // With a cache on the disk, no cache in memory is needed.
            (
                &["default"],
                serde_json::json!({"keep_cache_ram": 512, "keep_cache_disk": 1024}),
                5,
                true,
                "default --crunchstat-interval=5 --allow-other --disk-cache --disk-cache-dir /s/keepcache --file-cache 1024",
            ),
        ] {
            let classes: Vec<String> = classes.iter().map(|c| (*c).to_owned()).collect();
            let request = Request {
                storage_classes: &classes,
                constraints: &serde_json::from_value(constraints).unwrap(),
                statistics_period: Duration::from_secs(seconds),
                allow_other,
                cache_dir: Path::new("/s/keepcache"),
            };
            let got = arguments(&request, Path::new("/j/keep"));
            let got: Vec<_> = got.iter().map(|word| word.to_str().unwrap()).collect();
            let expected = format!("--foreground --read-write --storage-classes {expected} {last}");
            assert_eq!(got.join(" "), expected);
        }
        let got = unmount_arguments(Path::new("/j/keep"));
        assert_eq!(got, ["--unmount-timeout=8", "--unmount", "/j/keep"]);
    }
}
