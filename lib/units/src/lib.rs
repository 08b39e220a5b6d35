//! Sizes and durations with units: text of flags and files in, numbers out, and back into short
//! text for output.
//!
//! A bare number is refused, except 0: 4 could mean gibibytes or megabytes. Sizes mean:
//!
//! | unit | factor |
//! |---|---|
//! | K, M, G, T, P (as `sbatch --mem`) | powers of 1024 |
//! | KiB, MiB, GiB, TiB, PiB | powers of 1024 |
//! | KB, MB, GB, TB, PB | powers of 1000 |
//! | B | 1 |
//!
//! Case does not matter. The configuration file of Arvados has rules of its own: there, K, M and G
//! are powers of 1000 ([`SingleLetter::Decimal`]), and a bare number is a number of bytes.

mod duration;
mod error;
mod size;

pub use duration::{DurationRange, format_duration, parse_duration, parse_whole_seconds};
pub use error::UnitError;
/// What `--help` says about the values SIZE and TIME.
pub const HELP: &str = "\
SIZE is a number and a unit, like 512MiB or 4G. K, M, G, T and KiB, MiB, GiB, TiB are powers of 1024; \
KB, MB, GB, TB are powers of 1000. TIME is numbers and units, like 500ms, 10s, 1h30m or 2d. Only 0 needs no unit.";

pub use size::{SingleLetter, format_size, parse_positive_size, parse_size, parse_size_as};
