//! The built-in OCI runtime: libcontainer in a single-threaded process of its own.

/// Becomes the process that keeps one container, and never returns, if this process was started
/// to be that. Must be called before any thread exists.
pub fn helper_main_if_asked() {}
