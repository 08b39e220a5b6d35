//! Our keys of a container's `runtime_status`, beside those that Arvados defines.
//!
//! A dispatcher writes most of them while results wait on a node. `crunch-run resume` reads them
//! and puts the earlier warning back.

/// True if every other attempt would fail as this one did. dispatch-api then makes no other
/// container for the request; Arvados ignores it.
pub const PERMANENT_FAILURE: &str = "permanentFailure";
/// Present if the site took the job away while its command ran: one of the words of
/// `docs/evictions.md`. The dispatcher writes it.
pub const EVICTION: &str = "eviction";
/// The values of `container_count_max` that a dispatcher is about to set after an eviction, by
/// request. Present until the record has its final state.
pub const RETRY_LIMITS: &str = "retryLimits";
/// Time since which the results wait: RFC 3339, UTC.
pub const UNDELIVERED_SINCE: &str = "undeliveredSince";
/// The `warning` that was there before.
pub const WARNING_BEFORE: &str = "warningBefore";
/// The `warningDetail` that was there before.
pub const WARNING_DETAIL_BEFORE: &str = "warningDetailBefore";
