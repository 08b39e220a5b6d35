# The doors of the project. Each sets up what it needs itself.

prefix ?= /usr/local
# Where a throwaway cluster keeps its state.
LAB ?= /tmp/dispatch-lab

.PHONY: demo test check bench lab-slurm lab-condor install deps

# The main job on the embedded default: real containers over real text, on this machine. A debug build: quick to make.
demo: deps
	cargo build --locked -p dispatch-cli -p dispatch-api -p dispatch-local -p crunch-run
	contrib/demo target/debug

# Everything. The tests of the whole suite run the programs, so these are built first; with the same features as the
# tests, so that nothing is built twice. Fail points are for tests only: no other door has them. Tests mostly wait for
# programs, and those of the suite for schedulers: more of them go at once than there are processors, and the contract of
# crunch-run beside the tests of all crates. What clients and dispatchers ask of a server is tried once more on one that
# passes for a real Arvados.
test: fail_points = --features fail-points/enabled
# What cargo keeps for the next change of one crate would be more than all that it builds: a whole run needs none of it.
test check: export CARGO_INCREMENTAL = 0
test: room deps deps-labs
	cargo build --workspace --bins --locked $(fail_points)
	$(crates) --no-run --lib --bins --tests
	$(MAKE) --jobs=2 --keep-going --output-sync=target test-contract test-crates
	RUST_TEST_THREADS=6 cargo test --no-fail-fast -p suite-tests --lib --bins --tests --locked $(fail_points)
	DISPATCH_API_EMULATE=arvados-3 RUST_TEST_THREADS=6 cargo test --no-fail-fast -p suite-tests --test client --locked $(fail_points)
	DISPATCH_API_EMULATE=arvados-3 RUST_TEST_THREADS=6 cargo test --no-fail-fast -p suite-tests --test faults --locked $(fail_points) -- api:: --skip slurm --skip condor
	cargo test --workspace --doc --locked $(fail_points)

crates = RUST_TEST_THREADS=$$(($$(nproc) * 2)) cargo test --no-fail-fast --workspace --exclude suite-tests --locked $(fail_points)
all_but_contract = $(sort $(filter-out contract,$(patsubst %.rs,%,$(notdir $(wildcard [!t]*/tests/*.rs))) \
	$(notdir $(patsubst %/main.rs,%,$(wildcard [!t]*/tests/*/main.rs)))))
.PHONY: test-contract test-crates
test-contract test-crates: fail_points = --features fail-points/enabled
test-contract:
	$(crates) --test contract
test-crates:
	$(crates) --lib --bins $(addprefix --test ,$(all_but_contract))

# All tests of dispatchers on a server that passes for a real Arvados; "test" plays a part of them there.
.PHONY: test-emulated
test-emulated: fail_points = --features fail-points/enabled
test-emulated: deps deps-labs
	cargo build --workspace --bins --locked $(fail_points)
	DISPATCH_API_EMULATE=arvados-3 RUST_TEST_THREADS=6 cargo test --no-fail-fast -p suite-tests --tests --locked $(fail_points)

# The tests of Slurm on that of another Debian release, which is unpacked beside this machine's: make test-slurm RELEASE=sid
RELEASE ?= trixie
.PHONY: test-slurm
test-slurm: fail_points = --features fail-points/enabled
test-slurm: deps deps-labs
	cargo build --workspace --bins --locked $(fail_points)
	SLURM_LAB_RELEASE=$(RELEASE) PATH="/opt/slurm-$(RELEASE)/usr/bin:$$PATH" RUST_TEST_THREADS=4 \
		cargo test -p suite-tests --test suite --test faults --locked $(fail_points) -- slurm

# The units of contrib/ as they are, under a systemd of their own: as root, where systemd is installed.
.PHONY: test-units
test-units: deps deps-labs
	cargo build --workspace --bins --locked
	tests/units/try target/debug slurm
	tests/units/try target/debug condor

# With a real NVIDIA GPU: containers get the granted one and no other. As root, on a machine that has one.
.PHONY: test-gpu
test-gpu: deps
	cargo test --locked -p crunch-run --features fail-points/enabled --test gpu_real -- --ignored

check: deps
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

# Figures, not pass or fail.
bench: deps deps-labs
	cargo build --release --workspace --bins --locked
	cargo bench --locked --workspace --bench suite --bench scale --bench engine --bench overhead --bench parts --bench capture --bench api --bench plan

# dispatch-condor on a pool of this machine.
.PHONY: bench-condor
bench-condor: deps deps-labs
	cargo build --release --workspace --bins --locked
	cargo bench --locked -p suite-tests --bench condor

# The same for dispatch-slurm on a real Slurm; BENCH_SLURM=bulk,idle is a part of it.
.PHONY: bench-slurm
bench-slurm: deps deps-labs
	cargo build --release --workspace --bins --locked
	cargo bench --locked -p suite-tests --bench slurm

# Dispatchers in a simulated world full of faults. A seed that fails fails again: make sim SEEDS=1 FROM=42
SEEDS ?= 100
FROM ?= 1
.PHONY: sim
sim: deps
	cargo run --release --locked -p simulator -- --seeds $(SEEDS) --from $(FROM) $(SIM_FLAGS)

# Manifests, images and patterns that nobody would write, with a nightly compiler: fuzz/README.md.
FUZZ_SECONDS ?= 60
.PHONY: fuzz
fuzz: deps
	fuzz/run manifest -max_total_time=$(FUZZ_SECONDS) -max_len=2000
	fuzz/run output_glob -max_total_time=$(FUZZ_SECONDS) -max_len=20000 -timeout=20
	fuzz/run image -max_total_time=$(FUZZ_SECONDS) -max_len=20000

# A throwaway Slurm cluster or HTCondor pool on loopback, to try things on; prints the lines to source.
lab-slurm: deps-labs
	bash tests/lab/slurm-up $(LAB)/slurm
	@echo "# end it with: bash tests/lab/slurm-down $(LAB)/slurm"
lab-condor: deps-labs
	bash tests/lab/condor-up $(LAB)/condor
	@echo "# end it with: bash tests/lab/condor-down $(LAB)/condor"

programs = dispatch dispatch-api dispatch-local dispatch-slurm dispatch-condor dispatch-overseer crunch-run
man = $(DESTDIR)$(prefix)/share/man/man1
install: deps
	cargo build --release --locked $(patsubst %,-p %,$(patsubst dispatch,dispatch-cli,$(programs)))
	install -d $(DESTDIR)$(prefix)/bin $(man)
	install -m 755 $(programs:%=target/release/%) $(DESTDIR)$(prefix)/bin
	for program in dispatch dispatch-local dispatch-slurm dispatch-condor dispatch-overseer; do \
	  target/release/$$program man --dir=$(man) || exit 1; done
	for program in dispatch-api crunch-run; do target/release/$$program man >$(man)/$$program.1 || exit 1; done

# A crunch-run that needs no library of the node: any Linux of this processor will do. 20 MB, for HTCondor to carry along.
static_target = $(shell uname -m)-unknown-linux-musl
.PHONY: static
static: deps
	contrib/install-deps static
	rustup target add $(static_target)
	cargo build --release --locked --target $(static_target) -p crunch-run
	install -d target/static
	install -s -m 755 target/$(static_target)/release/crunch-run target/static/crunch-run
	target/static/crunch-run --version

.PHONY: room
room:
	tests/room

deps:
	contrib/install-deps

.PHONY: deps-labs
deps-labs:
	contrib/install-deps labs
