//! Removes what is left of containers whose owner or shim died.

use super::labs;
use crate::shim_scenarios::{self, parent};

#[tokio::test]
async fn a_container_that_is_never_started_leaves_nothing() {
    for lab in labs() {
        shim_scenarios::a_container_that_is_never_started_leaves_nothing(&lab).await;
    }
}

#[tokio::test]
async fn a_container_whose_owner_is_gone_leaves_nothing() {
    for lab in labs() {
        shim_scenarios::a_container_whose_owner_is_gone_leaves_nothing(&lab).await;
    }
}

#[tokio::test]
async fn a_container_whose_keeper_is_killed_is_killed_too_and_recovered() {
    for lab in labs() {
        shim_scenarios::a_container_whose_keeper_is_killed_is_killed_too_and_recovered(
            &lab,
            |pid| parent(parent(pid)),
        )
        .await;
    }
}

#[tokio::test]
async fn what_still_runs_of_an_earlier_attempt_is_ended_by_recover() {
    for lab in labs() {
        shim_scenarios::what_still_runs_of_an_earlier_attempt_is_ended_by_recover(&lab).await;
    }
}
