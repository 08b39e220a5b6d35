//! Reading an archive that may be hostile over a connection that may fail: whose fault an error is, and how much
//! of it may be held in memory.

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;

/// Names and attributes of one entry of a tar file, all of which are held in memory, take no more than this.
const MOST_HEADERS: u64 = 1 << 20;

/// What the archive's own reader failed with. Everything else is the fault of what is in the archive.
#[derive(Clone, Default)]
pub struct Transport(Rc<RefCell<Option<io::Error>>>);

impl Transport {
    /// The error, if there was one; readers in between may have given it other words.
    pub fn failure(&self) -> Option<io::Error> {
        self.0.borrow_mut().take()
    }

    fn note<T>(&self, done: io::Result<T>) -> io::Result<T> {
        done.map_err(|error| {
            let kind = error.kind();
            // Whoever reads tries again after an interruption.
            if kind != io::ErrorKind::Interrupted {
                *self.0.borrow_mut() = Some(error);
            }
            kind.into()
        })
    }
}

/// A reader whose failures are noted.
pub struct Source<R> {
    inner: R,
    transport: Transport,
}

impl<R> Source<R> {
    pub fn new(inner: R, transport: &Transport) -> Self {
        Self {
            inner,
            transport: transport.clone(),
        }
    }
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.transport.note(self.inner.read(buffer))
    }
}

impl<R: Seek> Seek for Source<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.transport.note(self.inner.seek(to))
    }
}

/// How much may still be read; shared between a reader and whoever knows what is being read.
#[derive(Clone)]
pub struct Allowance(Rc<Cell<u64>>);

impl Allowance {
    pub fn unlimited() -> Self {
        Self(Rc::new(Cell::new(u64::MAX)))
    }

    /// The tar reader collects what comes before the next entry's content.
    pub fn headers(&self) {
        self.0.set(MOST_HEADERS);
    }

    pub fn content(&self) {
        self.0.set(u64::MAX);
    }
}

/// Reads no more than is allowed.
pub struct Metered<R> {
    inner: R,
    allowance: Allowance,
}

impl<R> Metered<R> {
    pub fn new(inner: R, allowance: &Allowance) -> Self {
        Self {
            inner,
            allowance: allowance.clone(),
        }
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let left = self.allowance.0.get().checked_sub(count as u64);
        let left = left.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the names and attributes of an entry take more than 1 MiB",
            )
        })?;
        self.allowance.0.set(left);
        Ok(count)
    }
}

impl<R: Seek> Seek for Metered<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}
