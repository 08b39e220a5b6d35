//! The trashes of a run: where its directories go when they are discarded, and how long the process
//! stays to empty them. In: the run's directories.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use host_state::trash;

use super::registry::RunPaths;

/// Time for the removal of files before the process ends. A scheduler gives the job's slot to the
/// next job only then; the next run of this user on this node removes the rest.
const FINAL_REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);

impl RunPaths {
    /// Directories with a trash that this run fills.
    pub fn trash_parents(&self) -> Vec<PathBuf> {
        let scratch = self.scratch.clone().unwrap_or(self.job_dir.clone());
        let job_dir = self.job_dir.parent().filter(|_| self.own);
        job_dir
            .map(PathBuf::from)
            .into_iter()
            .chain([scratch])
            .collect()
    }

    /// Whether files of this run, or of another one with the same directories, are still there.
    pub fn has_trash(&self) -> bool {
        self.trash_parents().iter().any(|dir| !trash::is_empty(dir))
    }

    /// Empties the trashes for a limited time. Returns whether nothing is left.
    pub fn empty_trash(&self) -> bool {
        let deadline = Instant::now() + FINAL_REMOVAL_TIMEOUT;
        for parent in self.trash_parents() {
            let mut is_over = || match Instant::now() < deadline {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            };
            if let Err(error) = trash::empty(&parent, &mut is_over) {
                eprintln!(
                    "crunch-run: could not remove all discarded files in {}: {error}",
                    parent.display()
                );
            }
        }
        !self.has_trash()
    }
}
