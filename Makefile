# The doors of the project. `make test` and `make check` set up what they need themselves.

.PHONY: test check bench deps

deps:
	contrib/install-deps

test: deps
	cargo test --workspace --lib --bins --tests --locked
	cargo test --workspace --doc --locked

check: deps
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

bench: deps
	cargo bench -p dispatch-api --bench api
