//! What a finding is about, and findings about it.

use preflight::Finding;

/// What a finding is about, in a word or two.
#[derive(Debug, Clone, Copy)]
pub struct Subject(pub &'static str);

impl Subject {
    pub fn ok(self, finding: impl AsRef<str>) -> Finding {
        Finding::ok(self.0, finding)
    }

    pub fn warn(self, finding: impl AsRef<str>, remedy: impl AsRef<str>) -> Finding {
        Finding::warn(self.0, finding, remedy)
    }

    pub fn fail(self, finding: impl AsRef<str>, remedy: impl AsRef<str>) -> Finding {
        Finding::fail(self.0, finding, remedy)
    }
}
