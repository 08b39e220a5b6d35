//! Counts how often each container really started: each says its name to this listener. And a gate at which containers
//! wait until the test lets them go on.

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

    /// A command that ends when the gate is opened, however late it comes there.
    pub fn script(&self) -> String {
        let port = self.listener.local_addr().unwrap().port();
        // Nobody takes its connection, which ends with the listener; later there is none.
        format!("nc 127.0.0.1 {port} </dev/null")
    }

    pub fn open(self) {
        drop(self.listener);
    }
}

pub struct Starts {
    port: u16,
    seen: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Starts {
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

    /// Says the name, works for a while, leaves a file. The container needs this machine's network.
    pub fn script(&self, name: &str, seconds: f32) -> String {
        self.script_of(name, &format!("sleep {seconds}"))
    }

    /// The same with other work.
    pub fn script_of(&self, name: &str, work: &str) -> String {
        format!(
            "echo {name} | nc 127.0.0.1 {} && {work} && echo done {name} > result",
            self.port
        )
    }

    pub fn of(&self, name: &str) -> u32 {
        self.seen.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}
