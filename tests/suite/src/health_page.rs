//! The health pages of a dispatcher that was started with `--health-listen 127.0.0.1:0`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::STEP_TIMEOUT;
use crate::stack::{Stack, wait_for};

/// Flags of a dispatcher with health pages.
pub const FLAGS: [&str; 2] = ["--health-listen", "127.0.0.1:0"];

/// Address of the health pages, from the dispatcher's log.
pub fn address(stack: &Stack) -> SocketAddr {
    wait_for("the address of the health page", STEP_TIMEOUT, || {
        let log = stack.dispatcher.log_text();
        let after = log.split(r#"event="health_listening" address="#).nth(1)?;
        after.split_whitespace().next()?.parse().ok()
    })
}

/// The answer to a GET with its status line; empty while there is none.
pub fn page(address: SocketAddr, path: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut connection) = TcpStream::connect(address) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let _ = connection.write_all(request.as_bytes());
        let _ = connection.read_to_string(&mut answer);
    }
    answer
}
