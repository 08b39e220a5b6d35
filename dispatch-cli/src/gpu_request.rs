//! The GPUs that `dispatch submit` asks for. Input: flags; output: the constraint of the request.

use serde_json::{Value, json};

/// Driver version for jobs that can use any: the lowest that servers accept, because they refuse 0.
/// Jobs that need a certain version are submitted through the API.
const ANY_DRIVER: &str = "0.1";

/// A number of devices of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpus {
    stack: String,
    /// At least 1.
    pub count: u32,
}

impl Gpus {
    /// Parses a number, or a stack and a number.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (stack, count) = text.split_once(':').unwrap_or(("cuda", text));
        let count = count.parse().ok().filter(|count| *count > 0);
        match (stack, count) {
            ("cuda" | "rocm", Some(count)) => Ok(Self {
                stack: stack.to_owned(),
                count,
            }),
            _ => Err(format!(
                "{text:?} is not a number of GPUs: write 1, cuda:2 or rocm:1"
            )),
        }
    }

    /// The `gpu` of the runtime constraints, for GPUs of any of these kinds.
    pub fn constraint(&self, targets: &[String]) -> Value {
        json!({
            "stack": self.stack, "device_count": self.count, "driver_version": ANY_DRIVER,
            "hardware_target": targets, "vram": 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_asked_for_with_a_driver_that_servers_accept() {
        for (text, stack, count) in [
            ("2", "cuda", 2),
            ("cuda:1", "cuda", 1),
            ("rocm:3", "rocm", 3),
        ] {
            let targets = ["8.0".to_owned(), "gfx90a".to_owned()];
            let gpu = Gpus::parse(text).unwrap().constraint(&targets);
            assert_eq!(gpu["stack"], stack);
            assert_eq!(gpu["device_count"], count);
            assert_eq!(gpu["hardware_target"], json!(["8.0", "gfx90a"]));
            // A server reads it as a number and refuses 0.
            let driver = gpu["driver_version"].as_str().unwrap();
            let (major, minor) = driver.split_once('.').unwrap();
            assert!(
                major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok(),
                "{driver}"
            );
            assert!(driver.parse::<f64>().unwrap() > 0.0, "{driver}");
        }
    }
}
