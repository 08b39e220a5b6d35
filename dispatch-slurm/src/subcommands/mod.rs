//! Subcommands of dispatch-slurm besides its service: what dispatch-core's subcommands need of
//! Slurm.

pub mod check;
pub mod dry_run;
pub mod probe_job;

use std::error::Error;
use std::path::Path;

use arvados_client::ContainerUuid;
use arvados_client::records::Container;
use dispatch_core::config::ValueSources;
use dispatch_core::model::owner::KnownOwner;
use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::model::world::JobId;
use dispatch_core::scheduler::test_submission::{TestResult, TestSubmission};
use dispatch_core::service;
use dispatch_core::service::state_dir::StateDir;
use dispatch_core::service::subcommands::check::Report;
use dispatch_core::service::subcommands::check::probe_job::ProbeOptions;
use dispatch_core::service::subcommands::explain::SchedulerTerms;
use dispatch_core::service::subcommands::{self, Render};

use crate::flags::Flags;
use crate::query::accounting::container_of_past_job;
use crate::query::node_class_cache::NodeClassCache;
use crate::settings::Settings;
use crate::slurm::Slurm;
use crate::subcommands::check::check;
use crate::subcommands::dry_run::dry_run;

/// The subcommands, with the flags and settings of this call.
#[derive(Debug)]
pub struct Commands<'a> {
    pub flags: &'a Flags,
    pub origins: &'a ValueSources,
    pub settings: Settings,
}

impl subcommands::DispatcherCommands for Commands<'_> {
    type Scheduler = Slurm;

    const TERMS: SchedulerTerms = SchedulerTerms {
        scheduler: "Slurm",
        program: "dispatch-slurm",
        ask: "squeue --start --job=",
    };

    fn common(&self) -> &service::Flags {
        &self.flags.common
    }

    fn state_dir(&self) -> &Path {
        &self.flags.state_dir
    }

    async fn dry_run(
        &self,
        container: &Container,
        owner: KnownOwner,
        home: StateDir,
    ) -> Result<impl Render, Box<dyn Error>> {
        let reserve = self.flags.common.reserve_extra_ram;
        let needs = ResourceRequest::of(container).with_reserved_ram(reserve);
        let capacity = NodeClassCache::new(&self.settings);
        let timeout = self.flags.common.command_timeout;
        capacity.refresh(&self.settings, timeout).await;
        let (record, room) = ((container, owner), (reserve, capacity.times(&needs)));
        dry_run(record, room, &self.settings, &home, self.origins)
    }

    fn scheduler(&self, home: StateDir, instance_id: String) -> Slurm {
        let timeout = self.flags.common.command_timeout;
        Slurm::new(self.settings.clone(), home, instance_id, timeout)
    }

    async fn container_of_past_job(&self, job: &JobId) -> Option<ContainerUuid> {
        container_of_past_job(&self.settings, job).await
    }

    async fn refusal(&self, scheduler: &Slurm, needs: &ResourceRequest) -> Option<String> {
        match scheduler.test_submission(needs, 1).await {
            TestResult::Rejected(words) => Some(words),
            TestResult::Accepted | TestResult::Unknown => None,
        }
    }

    async fn check(&self, test: Option<ProbeOptions>) -> Report {
        check(self.flags, &self.settings, test).await
    }
}
