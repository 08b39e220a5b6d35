//! What dispatch-slurm does beside its service: its part of the errands.

use std::error::Error;
use std::path::Path;

use arvados_client::records::Container;
use dispatch_core::check::Report;
use dispatch_core::check::submit_test::Test;
use dispatch_core::config::Origins;
use dispatch_core::errand::{self, Page};
use dispatch_core::explain::Names;
use dispatch_core::home::Home;
use dispatch_core::needs::Needs;
use dispatch_core::program;

use crate::check::check;
use crate::dry_run::dry_run;
use crate::flags::Flags;
use crate::refusals::{self, Trial};
use crate::settings::Settings;
use crate::slurm::Slurm;

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
    type Scheduler = Slurm;

    const NAMES: Names = Names {
        scheduler: "Slurm",
        program: "dispatch-slurm",
        directory: "--shared-dir",
        ask: "squeue --start --job=",
    };

    fn common(&self) -> &program::Flags {
        &self.flags.common
    }

    fn directory(&self) -> &Path {
        &self.flags.shared_dir
    }

    async fn dry_run(
        &self,
        container: &Container,
        home: Home,
    ) -> Result<impl Page, Box<dyn Error>> {
        let reserve = self.flags.common.reserve_extra_ram;
        dry_run(container, reserve, &self.settings, &home, self.origins)
    }

    fn scheduler(&self, home: Home, label: String) -> Slurm {
        let patience = self.flags.common.command_timeout;
        Slurm::new(self.settings.clone(), home, label, patience)
    }

    async fn refusal(&self, needs: &Needs) -> Option<String> {
        match refusals::ask(&self.settings, needs).await {
            Trial::Refused(words) => Some(words),
            Trial::Taken | Trial::Unknown => None,
        }
    }

    async fn check(&self, test: Option<Test>) -> Report {
        check(self.flags, &self.settings, test).await
    }
}
