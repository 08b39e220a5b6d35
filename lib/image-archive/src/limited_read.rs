//! Readers for a hostile archive behind an unreliable transport: they record errors of the
//! transport, and limit what is held in memory.

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;

/// Maximum size of the names and attributes of one tar entry, which are held in memory.
pub const MAX_HEADER_BYTES: u64 = 1 << 20;

/// The error of the archive's own reader. All other errors are due to the content.
#[derive(Clone, Default)]
pub struct TransportErrors(Rc<RefCell<Option<io::Error>>>);

impl TransportErrors {
    /// The error, if there was one; readers in between may have replaced it.
    pub fn failure(&self) -> Option<io::Error> {
        self.0.borrow_mut().take()
    }

    fn record<T>(&self, done: io::Result<T>) -> io::Result<T> {
        done.map_err(|error| {
            let kind = error.kind();
            // Readers retry after an interruption.
            if kind != io::ErrorKind::Interrupted {
                *self.0.borrow_mut() = Some(error);
            }
            kind.into()
        })
    }
}

/// A reader that records its errors.
pub struct RecordingReader<R> {
    inner: R,
    transport: TransportErrors,
}

impl<R> RecordingReader<R> {
    pub fn new(inner: R, transport: &TransportErrors) -> Self {
        Self {
            inner,
            transport: transport.clone(),
        }
    }
}

impl<R: Read> Read for RecordingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.transport.record(self.inner.read(buffer))
    }
}

impl<R: Seek> Seek for RecordingReader<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.transport.record(self.inner.seek(to))
    }
}

/// Number of bytes that may still be read, shared between a reader and the code that parses.
#[derive(Clone)]
pub struct ReadBudget(Rc<Cell<u64>>);

impl ReadBudget {
    pub fn unlimited() -> Self {
        Self(Rc::new(Cell::new(u64::MAX)))
    }

    /// Whether more was read than the limit.
    pub fn is_exceeded(&self) -> bool {
        self.0.get() == 0
    }

    /// Limits the bytes before the next entry's content, which the tar reader holds in memory.
    pub fn headers(&self) {
        self.0.set(MAX_HEADER_BYTES);
    }
}

/// A reader that fails beyond its budget.
pub struct LimitedReader<R> {
    inner: R,
    budget: ReadBudget,
}

impl<R> LimitedReader<R> {
    pub fn new(inner: R, budget: &ReadBudget) -> Self {
        Self {
            inner,
            budget: budget.clone(),
        }
    }
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let left = self.budget.0.get().saturating_sub(count as u64);
        self.budget.0.set(left);
        match left {
            0 if count > 0 => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the names and attributes of an entry take more than 1 MiB",
            )),
            _ => Ok(count),
        }
    }
}

impl<R: Seek> Seek for LimitedReader<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}
