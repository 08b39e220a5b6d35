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

/// Makes tests of `async fn $row(backend: Backend)`: on the fake Slurm and HTCondor side by side,
/// on a real Slurm, and on a real HTCondor.
macro_rules! on_every_scheduler {
    ($row:ident) => {
        crate::backend::on_every_backend!($row, on_fake_schedulers);
    };
}
pub(crate) use on_every_scheduler;

/// The same as [`on_every_scheduler`], and dispatch-local beside the fakes.
macro_rules! on_every_dispatcher {
    ($row:ident) => {
        crate::backend::on_every_backend!($row, on_fakes_and_local);
    };
}
pub(crate) use on_every_dispatcher;

/// What [`on_every_scheduler`] and [`on_every_dispatcher`] share: `$fakes` runs the row on the
/// fakes.
macro_rules! on_every_backend {
    ($row:ident, $fakes:ident) => {
        mod $row {
            use crate::backend::{Backend, $fakes};

            #[tokio::test(flavor = "multi_thread")]
            async fn fakes() {
                $fakes(super::$row).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn slurm() {
                super::$row(Backend::RealSlurm).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn htcondor() {
                super::$row(Backend::RealCondor).await;
            }
        }
    };
}
pub(crate) use on_every_backend;

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

/// Runs `row` on the fake Slurm, the fake HTCondor and dispatch-local side by side.
pub async fn on_fakes_and_local<F: Future<Output = ()> + Send + 'static>(
    row: impl Fn(Backend) -> F,
) {
    side_by_side(&[Backend::Slurm, Backend::Condor, Backend::Local], row).await;
}

async fn side_by_side<F: Future<Output = ()> + Send + 'static>(
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
