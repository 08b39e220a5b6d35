//! Where containers run: this machine, a real Slurm cluster, or a real HTCondor pool; and the macro
//! that runs one scenario on each.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Pid;

use suite_tests::condor_lab::Pool;
use suite_tests::program::Program;
use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::{Servers, Stack};

/// Limit of pending jobs, so that the first of two dispatchers does not take all containers.
const MAX_PENDING_4: [&str; 2] = ["--max-pending", "4"];

pub enum Backend {
    Local,
    Slurm(Cluster),
    HtCondor(Pool),
}

impl Backend {
    pub fn slurm() -> Self {
        Self::Slurm(Cluster::up(&["-n", "1", "-c", "8", "-m", "4000"]))
    }

    pub fn htcondor() -> Self {
        Self::HtCondor(Pool::up(&["--slots", "8"]))
    }

    /// One dispatcher. Its own files are in `dir`, which must exist.
    pub fn dispatcher(
        &self,
        servers: &Servers,
        dir: &Path,
        more: &[&str],
        variables: &[(&'static str, &str)],
    ) -> Program {
        match self {
            Self::Local => {
                let run = dir.join("run");
                let mut args = vec!["--state-dir", run.to_str().unwrap()];
                args.extend(more);
                servers.dispatcher("dispatch-local", &args, variables)
            }
            Self::Slurm(cluster) => {
                cluster.dispatcher_with(servers, &dir.join("shared"), more, variables)
            }
            Self::HtCondor(pool) => {
                pool.dispatcher_with(servers, dir, "dispatch-condor", more, variables)
            }
        }
    }

    /// The servers and a dispatcher.
    pub async fn stack(&self) -> Stack {
        self.stack_with(&[]).await
    }

    /// The servers and a dispatcher with `more` arguments.
    pub async fn stack_with(&self, more: &[&str]) -> Stack {
        Stack::with(|servers, dir| self.dispatcher(servers, dir, more, &[])).await
    }

    /// The servers and two dispatchers; the second, which is not started, has its token from this
    /// file if there is one.
    pub async fn stack_of_two(&self, token: Option<&str>) -> (Stack, Program) {
        let mut second = None;
        let stack = Stack::with(|servers, dir| {
            let own = dir.join("second");
            fs::create_dir(&own).unwrap();
            let servers_of_second = Servers {
                log: own.join("dispatcher"),
                ..servers.clone()
            };
            let token = token.map(|name| dir.join(name));
            let mut more = MAX_PENDING_4.to_vec();
            more.extend(
                token
                    .iter()
                    .flat_map(|file| ["--token-file", file.to_str().unwrap()]),
            );
            second = Some(self.dispatcher(&servers_of_second, &own, &more, &[]));
            self.dispatcher(servers, dir, &MAX_PENDING_4, &[])
        })
        .await;
        (stack, second.unwrap())
    }

    /// Limits the number of files that a process of the dispatcher's user may have open.
    pub fn limit_files(&self, process: Pid, files: &str) {
        let mut command = match self {
            Self::Local | Self::Slurm(_) => Command::new("prlimit"),
            // Its own user may do that, whatever root may do here.
            Self::HtCondor(pool) => {
                let mut command = Command::new("setpriv");
                command.arg(format!("--reuid={}", pool.user()));
                command.arg(format!("--regid={}", pool.user()));
                command.args(["--clear-groups", "prlimit"]);
                command
            }
        };
        command.arg(format!("--pid={process}"));
        let status = command.arg(format!("--nofile={files}:")).status();
        assert!(status.unwrap().success());
    }

    /// Gives a file to the dispatcher's user.
    pub fn give(&self, file: &Path) {
        if let Self::HtCondor(pool) = self {
            pool.give(file);
        }
    }
}

/// Makes tests of `async fn $scenario(backend: Backend)`: one on each backend.
macro_rules! on_every_backend {
    ($scenario:ident) => {
        mod $scenario {
            use crate::backend::Backend;

            #[tokio::test(flavor = "multi_thread")]
            async fn local() {
                super::$scenario(Backend::Local).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn slurm() {
                super::$scenario(Backend::slurm()).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn htcondor() {
                super::$scenario(Backend::htcondor()).await;
            }
        }
    };
}
pub(crate) use on_every_backend;
