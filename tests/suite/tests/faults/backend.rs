//! The schedulers that a test of the fault matrix runs on, and the macros that make one test for
//! each of them.

use std::future::Future;

use crate::real_backend::RealScheduler;

/// A dispatcher and its scheduler: a fake one, a real one, or this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Slurm,
    Condor,
    Local,
    RealSlurm,
    RealCondor,
}

impl Backend {
    pub fn program(self) -> &'static str {
        match self {
            Backend::Slurm | Backend::RealSlurm => "dispatch-slurm",
            Backend::Condor | Backend::RealCondor => "dispatch-condor",
            Backend::Local => "dispatch-local",
        }
    }

    /// Name of the scheduler in messages of its dispatcher.
    pub fn scheduler(self) -> &'static str {
        self.program().trim_start_matches("dispatch-")
    }

    /// Whether it is Slurm's, be that real or not.
    pub fn is_slurm(self) -> bool {
        self.program() == "dispatch-slurm"
    }

    pub fn real(self) -> Option<RealScheduler> {
        match self {
            Backend::RealSlurm => Some(RealScheduler::slurm()),
            Backend::RealCondor => Some(RealScheduler::condor()),
            Backend::Slurm | Backend::Condor | Backend::Local => None,
        }
    }

    /// The command that submits jobs.
    pub fn submit_command(self) -> &'static str {
        match self {
            Backend::Slurm | Backend::RealSlurm => "sbatch",
            _ => "condor_submit",
        }
    }

    /// The command that lists jobs.
    pub fn list_command(self) -> &'static str {
        match self {
            Backend::Slurm | Backend::RealSlurm => "squeue",
            _ => "condor_q",
        }
    }

    /// The command that cancels jobs.
    pub fn cancel_command(self) -> &'static str {
        match self {
            Backend::Slurm | Backend::RealSlurm => "scancel",
            _ => "condor_rm",
        }
    }

    /// An argument of listings that queries of one ended job do not have.
    pub fn listing_argument(self) -> &'static str {
        match self {
            Backend::Slurm | Backend::RealSlurm => "%r|%j",
            _ => "ContainerDispatcher",
        }
    }
}

/// Makes tests of the row of the module around: on a real Slurm, and on a real HTCondor.
macro_rules! on_real_schedulers {
    ($row:ident) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn slurm() {
            super::$row(crate::backend::Backend::RealSlurm).await;
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn htcondor() {
            super::$row(crate::backend::Backend::RealCondor).await;
        }
    };
}
pub(crate) use on_real_schedulers;

/// Makes tests of `async fn $row(backend: Backend)`: on the fake Slurm and HTCondor side by side,
/// on a real Slurm, and on a real HTCondor.
macro_rules! on_every_scheduler {
    ($row:ident) => {
        mod $row {
            use crate::backend::on_fake_schedulers;

            #[tokio::test(flavor = "multi_thread")]
            async fn fakes() {
                on_fake_schedulers(super::$row).await;
            }

            crate::backend::on_real_schedulers!($row);
        }
    };
}
pub(crate) use on_every_scheduler;

/// Makes tests of a fault of the API server, which meets the same code in every dispatcher: on the
/// fake Slurm, on the `$other` fakes side by side, and on real schedulers.
macro_rules! api_fault {
    ($row:ident, [$($other:ident),+]) => {
        mod $row {
            use crate::backend::{Backend, side_by_side};

            #[tokio::test(flavor = "multi_thread")]
            async fn one_fake() {
                super::$row(Backend::Slurm).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn other_fakes() {
                side_by_side(&[$(Backend::$other),+], super::$row).await;
            }

            crate::backend::on_real_schedulers!($row);
        }
    };
}
pub(crate) use api_fault;

/// Makes tests of `async fn $row(backend: Backend)` on the fake Slurm and on a real one.
macro_rules! on_fake_and_real_slurm {
    ($row:ident) => {
        mod $row {
            use crate::backend::Backend;

            #[tokio::test(flavor = "multi_thread")]
            async fn fake() {
                super::$row(Backend::Slurm).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn slurm() {
                super::$row(Backend::RealSlurm).await;
            }
        }
    };
}
pub(crate) use on_fake_and_real_slurm;

/// Runs `row` on the fake Slurm and the fake HTCondor side by side.
pub async fn on_fake_schedulers<F: Future<Output = ()> + Send + 'static>(
    row: impl Fn(Backend) -> F,
) {
    side_by_side(&[Backend::Slurm, Backend::Condor], row).await;
}

/// Runs `row` on these side by side.
pub async fn side_by_side<F: Future<Output = ()> + Send + 'static>(
    kinds: &[Backend],
    row: impl Fn(Backend) -> F,
) {
    let rows: Vec<_> = kinds
        .iter()
        .map(|backend| (backend, tokio::spawn(row(*backend))))
        .collect();
    let mut failed = Vec::new();
    for (backend, row) in rows {
        if row.await.is_err() {
            failed.push(backend);
        }
    }
    // Each failure is printed above.
    assert!(failed.is_empty(), "{failed:?}");
}
