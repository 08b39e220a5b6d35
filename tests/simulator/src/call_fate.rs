//! The fate of simulated API calls: answered, refused, lost or late.

use std::time::Duration;

use crate::faults::MAX_CALL_DELAY;
use crate::state::SimWorld;

/// The fate of one API call.
#[derive(Debug, Clone, Copy)]
pub enum CallFate {
    /// It is answered.
    Answered,
    /// It is refused with this status before anything happened.
    Refused(u16),
    /// It takes effect and the answer is lost.
    Lost,
    /// The answer is lost, and it takes effect so much later.
    Late(Duration),
}

/// Draws the fate of a call, and the delays before and after it takes effect.
pub fn draw_fate(world: &mut SimWorld) -> (CallFate, Duration, Duration) {
    let slow = world.faults.slow;
    let most = match world.draw(slow) {
        true => Duration::from_secs(30),
        false => Duration::from_millis(40),
    };
    let (before, after) = (world.random_duration(most), world.random_duration(most));
    let faults = world.faults.clone();
    let fate = if tokio::time::Instant::now() < world.api_away_until || world.draw(faults.refused) {
        CallFate::Refused([429, 500, 503][world.rng.usize(..3)])
    } else if refuses_token(world) {
        CallFate::Refused(401)
    } else if world.draw(faults.lost) {
        CallFate::Lost
    } else if world.draw(faults.late) {
        CallFate::Late(world.random_duration(MAX_CALL_DELAY))
    } else {
        CallFate::Answered
    };
    (fate, before, after)
}

/// The server does not know a valid token for the moment.
fn refuses_token(world: &mut SimWorld) -> bool {
    let (until, often) = world.refuses_tokens;
    tokio::time::Instant::now() < until && world.draw(often)
}
