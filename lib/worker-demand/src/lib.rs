//! The demand file: how many workers a queue could use, for a program that starts workers.
//!
//! The file is the resource file of CL-MW, or the same in JSON. It is read as data: nothing in it
//! is ever evaluated. Anything outside the format is refused, with its position. No I/O and no
//! clock here.

mod demand;
mod error;
mod json;
mod lisp;
mod read;
mod sexpr;
mod value;

pub use demand::{Demand, MAX_FILE_BYTES, Status, UNIVERSAL_EPOCH, Worker};
pub use error::{Problem, ReadError};
pub use json::to_json;
pub use lisp::to_lisp;
pub use sexpr::{Position, SyntaxError};
pub use value::ValueError;

#[cfg(test)]
mod tests;
