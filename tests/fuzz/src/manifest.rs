//! Manifests: no text makes the parser panic, and a parsed manifest is written and read back the
//! same.

use arvados_client::manifest::Manifest;

/// Checks the rules with this input.
pub fn check(text: &str) {
    let Ok(manifest) = Manifest::parse(text) else {
        return;
    };
    assert_eq!(
        Manifest::parse(&manifest.to_string()).as_ref(),
        Ok(&manifest)
    );
    let once = manifest.tree().to_manifest();
    assert_eq!(once.tree().to_manifest(), once);
    assert_eq!(once.total_size(), manifest.total_size());
    for file in manifest.files() {
        let parts = file.path.split('/');
        assert!(
            parts.clone().all(|part| !matches!(part, "" | "." | "..")),
            "{}",
            file.path
        );
    }
}
