//! Writes the text of a manifest.

use std::fmt;

use super::{Manifest, escape};

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for stream in &self.streams {
            write!(f, "{}", escape::EscapedStream(&stream.name))?;
            for block in &stream.blocks {
                write!(f, " {block}")?;
            }
            for segment in &stream.segments {
                let name = escape::Escaped(&segment.name);
                write!(f, " {}:{}:{name}", segment.position, segment.length)?;
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}
