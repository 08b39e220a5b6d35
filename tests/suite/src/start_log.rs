//! Counts the starts of each container: each sends its name to a listener. Also a gate at which
//! containers wait until the test opens it.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// Containers wait before it until it is opened. They need this machine's network.
pub struct Gate {
    listener: TcpListener,
}

impl Gate {
    pub fn closed() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { listener }
    }

    /// A command that ends when the gate is opened, also if that was before.
    pub fn script(&self) -> String {
        let port = self.listener.local_addr().unwrap().port();
        // The connection is never accepted. It ends with the listener; later connections are
        // refused.
        format!("nc 127.0.0.1 {port} </dev/null")
    }

    pub fn open(self) {
        drop(self.listener);
    }
}

pub struct StartLog {
    port: u16,
    seen: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl StartLog {
    pub fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let counts = seen.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut name = String::new();
                connection.unwrap().read_to_string(&mut name).unwrap();
                *counts
                    .lock()
                    .unwrap()
                    .entry(name.trim().to_owned())
                    .or_insert(0) += 1;
            }
        });
        Self { port, seen }
    }

    /// Sends the name, runs for a while and leaves a file. The container needs this machine's
    /// network.
    pub fn script(&self, name: &str, seconds: f32) -> String {
        self.script_of(name, &format!("sleep {seconds}"))
    }

    /// The same with another command.
    pub fn script_of(&self, name: &str, work: &str) -> String {
        format!(
            "echo {name} | nc 127.0.0.1 {} && {work} && echo done {name} > result",
            self.port
        )
    }

    pub fn count(&self, name: &str) -> u32 {
        self.seen.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}
