//! Fuzz targets for everything that reads what strangers write. Each takes any bytes, and panics if
//! a rule does not hold. The tests run them with their first inputs and with changes of these.

pub mod cdi;
pub mod condor;
pub mod demand;
pub mod image;
pub mod listing;
pub mod locator;
pub mod manifest;
pub mod output_glob;
pub mod request;
pub mod slurm;
pub mod token;

/// Takes one input.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Target); 11] = [
    ("cdi", cdi::check),
    ("condor", |bytes| condor::check(text(bytes))),
    ("demand", demand::check),
    ("image", image::check),
    ("listing", listing::check),
    ("locator", |bytes| locator::check(text(bytes))),
    ("manifest", |bytes| manifest::check(text(bytes))),
    ("output_glob", |bytes| output_glob::check(text(bytes))),
    ("request", request::check),
    ("slurm", |bytes| slurm::check(text(bytes))),
    ("token", |bytes| token::check(text(bytes))),
];

/// The begin of an input, as far as it is text.
fn text(bytes: &[u8]) -> &str {
    let valid = bytes.utf8_chunks().next();
    valid.map_or("", |chunk| chunk.valid())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Changed inputs of each target.
    const CHANGES: usize = 200;

    /// The input with some bytes replaced, removed, doubled or added.
    fn changed(input: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..random.usize(1..6) {
            let from = random.usize(0..=bytes.len());
            let to = bytes.len().min(from + random.usize(0..9));
            let part = match random.u8(0..4) {
                0 => Vec::new(),
                1 => bytes[from..to].repeat(2),
                2 => vec![random.u8(..)],
                _ => fastrand::choice([&b"\0"[..], b"\n", b"|", b"-1", b"99999999999999999999"])
                    .map_or(Vec::new(), <[u8]>::to_vec),
            };
            bytes.splice(from..to, part);
        }
        bytes
    }

    #[test]
    fn the_rules_hold_for_first_inputs_and_changes_of_them() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
        for (name, target) in TARGETS {
            let mut random = fastrand::Rng::with_seed(7);
            let files = fs::read_dir(seeds.join(name)).unwrap();
            let inputs = files.map(|file| fs::read(file.unwrap().path()).unwrap());
            let inputs: Vec<Vec<u8>> = inputs.collect();
            assert!(!inputs.is_empty(), "{name}");
            for input in &inputs {
                target(input);
                for _ in 0..CHANGES / inputs.len() {
                    target(&changed(input, &mut random));
                }
            }
        }
    }

    #[test]
    fn an_input_is_text_as_far_as_it_is() {
        assert_eq!(text(b"ab\xffcd"), "ab");
        assert_eq!((text(b"\xff"), text(b"")), ("", ""));
    }
}
