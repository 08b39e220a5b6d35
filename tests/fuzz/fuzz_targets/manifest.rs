//! Manifests: no text makes the parser panic, and a parsed manifest is written and read back the
//! same.

#![no_main]

use arvados_client::manifest::Manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(manifest) = Manifest::parse(text) else {
        return;
    };
    assert_eq!(Manifest::parse(&manifest.to_string()).as_ref(), Ok(&manifest));
    let once = manifest.normalised();
    assert_eq!(once.normalised(), once);
    assert_eq!(once.total_size(), manifest.total_size());
    for file in manifest.files() {
        let parts = file.path.split('/');
        assert!(parts.clone().all(|part| !matches!(part, "" | "." | "..")), "{}", file.path);
    }
});
