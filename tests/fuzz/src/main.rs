//! Runs the target that the variable `FUZZ_TARGET` names, by libFuzzer.

#![no_main]

use std::sync::LazyLock;

use fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

static CHOSEN: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let chosen = TARGETS.into_iter().find(|(target, _)| *target == name);
    chosen
        .unwrap_or_else(|| panic!("FUZZ_TARGET is {name:?}, and there is no such target"))
        .1
});

fuzz_target!(|bytes: &[u8]| CHOSEN(bytes));
