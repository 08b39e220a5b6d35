//! Demand files: no bytes make the reader panic, and what was read is written and read back the
//! same, in both forms.

use worker_demand::{Demand, to_json, to_lisp};

/// Checks the rules with this input.
pub fn check(bytes: &[u8]) {
    let Ok(demand) = Demand::read(bytes) else {
        return;
    };
    let lisp = to_lisp(&demand);
    assert_eq!(
        Demand::read(lisp.as_bytes()).as_ref(),
        Ok(&demand),
        "{lisp}"
    );
    let json = to_json(&demand).expect("JSON");
    assert_eq!(
        Demand::read(json.as_bytes()).as_ref(),
        Ok(&demand),
        "{json}"
    );
    let _ = (demand.command(), demand.worker.command_hash());
}
