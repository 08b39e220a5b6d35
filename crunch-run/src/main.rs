//! Runs one container and reports its state, logs and outputs.

fn main() {
    // Before any thread exists: this process may be the small one that keeps a container.
    crunch_run::engine::builtin::helper_main_if_asked();
}
