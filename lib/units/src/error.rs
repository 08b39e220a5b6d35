//! Why a text is not a size or duration: each error says what to write instead.

/// Why a size or duration cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error(
        "{0:?} needs a unit: write {0}GiB, {0}MiB or {0}KiB (powers of 1024), or {0}GB, {0}MB or {0}KB (powers of 1000)"
    )]
    SizeWithoutUnit(String),
    #[error("{0:?} needs a unit: write {0}s, {0}m, {0}h or {0}d (seconds, minutes, hours, days)")]
    TimeWithoutUnit(String),
    #[error("{0:?} is not a size: write a number and a unit, like 512MiB, 4GiB or 1.5GB")]
    NotASize(String),
    #[error("{0:?} is not a time: write numbers and units, like 10s, 500ms, 30m, 1h30m or 2d")]
    NotATime(String),
    #[error("{0:?} is zero; leave the option out instead")]
    Zero(String),
    #[error("{0:?} is shorter than the smallest time allowed here, 1s")]
    LessThanASecond(String),
    #[error("{0:?} is larger than any machine; check the unit")]
    TooLarge(String),
    #[error("{text:?} is out of range: write a time from {min} to {max}")]
    OutOfRange {
        text: String,
        min: String,
        max: String,
    },
}
