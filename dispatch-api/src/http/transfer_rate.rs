//! The minimum rate of a transfer: a deadline that grows with the bytes transferred.
//!
//! A client may keep the server waiting for a fixed time. Each byte that it sends or receives earns
//! a little of it back, so a trickle earns nearly nothing. Writing is limited for the whole
//! connection, whatever it carries: responses, events and tunnels.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use super::connections::Connection;

/// Bytes that earn back one second of waiting.
pub const MIN_BYTES_PER_SECOND: u64 = 16 << 10;

/// The waiting time that a client has left.
#[derive(Clone, Debug)]
pub struct WaitBudget {
    limit: Duration,
    spent: Duration,
}

impl WaitBudget {
    pub fn new(limit: Duration) -> Self {
        WaitBudget {
            limit,
            spent: Duration::ZERO,
        }
    }

    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.spent)
    }

    /// Records a wait that ended with a transfer of some bytes.
    pub fn record(&mut self, waited: Duration, bytes: usize) {
        let earned = Duration::from_secs_f64(bytes as f64 / MIN_BYTES_PER_SECOND as f64);
        self.spent = (self.spent + waited).saturating_sub(earned);
    }
}

/// The socket of a connection. Writing fails if the client receives too slowly.
pub struct RateLimitedStream {
    stream: TcpStream,
    budget: WaitBudget,
    /// Start of the current wait, and the timer that ends it.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Removes the connection from the table when the socket is closed.
    _connection: Arc<Connection>,
}

impl RateLimitedStream {
    pub fn new(stream: TcpStream, connection: Arc<Connection>, limit: Duration) -> Self {
        RateLimitedStream {
            stream,
            budget: WaitBudget::new(limit),
            waiting: None,
            _connection: connection,
        }
    }

    fn limit<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
        bytes: impl Fn(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        match result {
            Poll::Ready(result) => {
                let waited = self.waiting.take().map(|(since, _)| since.elapsed());
                let bytes = result.as_ref().map_or(0, bytes);
                self.budget.record(waited.unwrap_or_default(), bytes);
                Poll::Ready(result)
            }
            Poll::Pending => {
                let left = self.budget.left();
                let (_, timer) = self.waiting.get_or_insert_with(|| {
                    let now = Instant::now();
                    (now, Box::pin(sleep_until(now + left)))
                });
                ready!(timer.as_mut().poll(context));
                Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client receives too slowly",
                )))
            }
        }
    }
}

impl AsyncRead for RateLimitedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for RateLimitedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, data);
        self.limit(context, result, |written| *written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, data);
        self.limit(context, result, |written| *written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trickle_uses_up_the_budget_and_a_slow_line_does_not() {
        let limit = Duration::from_secs(30);
        let mut trickle = WaitBudget::new(limit);
        for _ in 0..3 {
            trickle.record(Duration::from_secs(10), 1);
        }
        assert!(trickle.left() < Duration::from_millis(1));
        let mut slow = WaitBudget::new(limit);
        for _ in 0..1000 {
            slow.record(Duration::from_secs(2), 40 << 10);
        }
        assert_eq!(slow.left(), limit);
    }
}
