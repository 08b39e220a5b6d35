//! End-to-end tests of the suite; the tests themselves are under `tests/`.
