//! What dispatch-condor does beside its service: its part of the errands.

use std::error::Error;
use std::path::Path;

use arvados_client::records::Container;
use dispatch_core::check::Report;
use dispatch_core::check::submit_test::Test;
use dispatch_core::config::Origins;
use dispatch_core::errand::{self, Page};
use dispatch_core::explain::Names;
use dispatch_core::home::Home;
use dispatch_core::program;
use dispatch_core::world::JobId;

use crate::analysis;
use crate::check::check;
use crate::condor::Condor;
use crate::dry_run::dry_run;
use crate::flags::Flags;
use crate::submission::Settings;

/// The program as it was told to be.
#[derive(Debug)]
pub struct Program<'a> {
    flags: &'a Flags,
    origins: &'a Origins,
    settings: Settings,
}

impl<'a> Program<'a> {
    /// With these flags, which are checked.
    pub fn new(
        flags: &'a Flags,
        origins: &'a Origins,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(Self {
            settings: flags.settings()?,
            flags,
            origins,
        })
    }
}

impl errand::Program for Program<'_> {
    type Scheduler = Condor;

    const NAMES: Names = Names {
        scheduler: "HTCondor",
        program: "dispatch-condor",
        directory: "--job-dir",
        ask: "condor_q -better-analyze ",
    };

    fn common(&self) -> &program::Flags {
        &self.flags.common
    }

    fn directory(&self) -> &Path {
        &self.flags.job_dir
    }

    async fn dry_run(
        &self,
        container: &Container,
        home: Home,
    ) -> Result<impl Page, Box<dyn Error>> {
        let reserve = self.flags.common.reserve_extra_ram;
        let label = home.shown_label();
        let condor = self.scheduler(home, label);
        condor.look_at_pool().await;
        dry_run(container, reserve, &self.settings, &condor, self.origins)
    }

    fn scheduler(&self, home: Home, label: String) -> Condor {
        let patience = self.flags.common.command_timeout;
        Condor::new(self.settings.clone(), home, label, patience)
    }

    async fn analysis(&self, job: &JobId) -> Option<String> {
        analysis::of(job, self.flags.common.command_timeout).await
    }

    async fn check(&self, test: Option<Test>) -> Report {
        check(self.flags, &self.settings, test).await
    }
}
