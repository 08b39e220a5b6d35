//! Subcommands of dispatch-condor: what dispatch-core's subcommands need of HTCondor.

pub mod check;
pub mod dry_run;
pub mod probe_job;

use std::error::Error;
use std::path::Path;

use arvados_client::ContainerUuid;
use arvados_client::records::Container;
use dispatch_core::config::ValueSources;
use dispatch_core::model::owner::KnownOwner;
use dispatch_core::model::world::JobId;
use dispatch_core::scheduler::command::Command;
use dispatch_core::service;
use dispatch_core::service::state_dir::StateDir;
use dispatch_core::service::subcommands::check::Report;
use dispatch_core::service::subcommands::check::probe_job::ProbeOptions;
use dispatch_core::service::subcommands::explain::SchedulerTerms;
use dispatch_core::service::subcommands::{self, Render};

use crate::condor::Condor;
use crate::flags::Flags;
use crate::query::better_analyze;
use crate::subcommands::check::check;
use crate::subcommands::dry_run::dry_run;
use crate::submit::description::{CONTAINER_ATTRIBUTE, Settings};

/// The subcommands with the flags of this call.
#[derive(Debug)]
pub struct Commands<'a> {
    pub flags: &'a Flags,
    pub origins: &'a ValueSources,
    pub settings: Settings,
}

impl subcommands::DispatcherCommands for Commands<'_> {
    type Scheduler = Condor;

    const TERMS: SchedulerTerms = SchedulerTerms {
        scheduler: "HTCondor",
        program: "dispatch-condor",
        ask: "condor_q -better-analyze ",
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
        let label = home.instance_id_or_placeholder();
        let condor = self.scheduler(home, label);
        condor.capacity.refresh(condor.command_timeout).await;
        let record = (container, owner);
        dry_run(record, reserve, &self.settings, &condor, self.origins)
    }

    fn scheduler(&self, home: StateDir, label: String) -> Condor {
        let timeout = self.flags.common.command_timeout;
        Condor::new(self.settings.clone(), home, label, timeout)
    }

    async fn container_of_past_job(&self, job: &JobId) -> Option<ContainerUuid> {
        let command = Command::new("condor_history").timeout(self.flags.common.command_timeout);
        let arguments = ["-limit", "1", "-af", CONTAINER_ATTRIBUTE, &job.0];
        let answer = command.args(arguments).run_checked().await.ok()?;
        ContainerUuid::parse(answer.stdout.trim()).ok()
    }

    async fn analysis(&self, job: &JobId) -> Option<String> {
        better_analyze::analyze(job, self.flags.common.command_timeout).await
    }

    async fn check(&self, test: Option<ProbeOptions>) -> Report {
        check(self.flags, &self.settings, test).await
    }
}
