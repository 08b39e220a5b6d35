# The doors of the project. Each sets up what it needs itself.

prefix ?= /usr/local
# Where a throwaway cluster keeps its state.
LAB ?= /tmp/dispatch-lab

.PHONY: demo quick test test-all check bench lab-slurm lab-condor install deps

# The main job on the embedded default: real containers over real text, on this machine. A debug build: quick to make.
demo: deps
	cargo build --locked -p dispatch-cli -p dispatch-api -p dispatch-local -p crunch-run
	contrib/demo target/debug

# Three commands test, each more than the one before: "quick" for a change, "test" before it is handed on, "test-all"
# before a release and after a change of what only "test-all" tests. .config/nextest.toml says what is in which.
# Only tests have fail points; all three use the same build.
fail_points = --features fail-points/enabled
nextest = cargo nextest run --workspace --locked $(fail_points)
# With a target that is a test, Cargo chooses the features of libraries as for all tests, and builds none a second time.
build_programs = cargo build --workspace --bins --test layout --locked $(fail_points)

# Format, lints, unit tests, and one run of the programs from end to end.
quick: deps deps-nextest
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked $(fail_points) -- -D warnings
	$(nextest) --lib --bins --profile quick
	$(build_programs)
	contrib/demo target/debug

# A clean clone builds once, so that an incremental build costs time and disk space for nothing.
ifdef CI
export CARGO_INCREMENTAL = 0
endif
# Every skipped test adds a line to this file.
test test-all: export SKIPPED_TESTS = $(CURDIR)/target/skipped-tests
# Rounds of each loop that kills a program at its fail points, and seeds of the simulator.
test: export KILL_ROUNDS ?= 3
test-all: export SIM_SEEDS ?= 300

# What finds nearly all faults. The end-to-end tests run the programs, so these are built first.
test: build-tests
	tests/labs/with-daemons slurm condor docker -- $(nextest)
	$(report_skipped)

# Every test. Those of the client, and of faults of the API server, run once more on a server that imitates Arvados.
test-all: build-tests
	tests/labs/with-daemons slurm condor docker podman podman-as-nobody -- $(nextest) --profile all
	DISPATCH_API_EMULATE=arvados-3 $(nextest) --profile all \
		-E 'binary(client) | binary(faults) & test(/^api::/) & not test(/::(slurm|htcondor)$$/)'
	cargo test -p arvados-client --doc --locked
	$(MAKE) test-cgroup-v2
	$(report_skipped)

report_skipped = @sort -u $(SKIPPED_TESTS); echo "$$(sort -u $(SKIPPED_TESTS) | wc -l) tests were skipped"

.PHONY: build-tests
build-tests: check-disk-space deps deps-labs
	mkdir -p target && rm -f $(SKIPPED_TESTS) && touch $(SKIPPED_TESTS)
	@tests/labs/python-clients >target/python-clients.log 2>&1 & \
	cargo build --workspace --bins --tests --locked $(fail_points) && wait
	tests/check-counts

# All tests of dispatchers on a server that passes for a real Arvados; "test" plays a part of them there.
.PHONY: test-emulated
test-emulated: deps deps-labs
	$(build_programs)
	DISPATCH_API_EMULATE=arvados-3 $(nextest) --profile all -E 'package(suite-tests)'

# The tests of Slurm on that of another Debian release, which is unpacked beside this machine's: make test-slurm RELEASE=sid
RELEASE ?= trixie
.PHONY: test-slurm
test-slurm: deps deps-labs
	$(build_programs)
	SLURM_LAB_RELEASE=$(RELEASE) PATH="/opt/slurm-$(RELEASE)/usr/bin:$$PATH" \
		$(nextest) --profile all -E 'package(suite-tests) & test(/slurm/)'

# Engines with control groups of version 2, and a group that systemd delegates to an ordinary user, in a virtual machine
# of their own: as root, on Debian. A quarter of an hour.
.PHONY: test-cgroup-v2
in_virtual_machine = VIRTUAL_MACHINE_USER=scientist \
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$(CURDIR)/tests/labs/virtual-machine \
	cargo test --workspace --locked $(fail_points)
test-cgroup-v2: deps deps-labs
	contrib/install-deps virtual-machine
	$(build_programs)
	$(in_virtual_machine) --test end_to_end -- --ignored --test-threads 1 delegated_group::
	$(in_virtual_machine) --test integration -- --test-threads 2 engine_
	$(in_virtual_machine) --test integration -- --include-ignored --test-threads 2 --skip docker --skip podman \
		only_documented_attempts a_site_s_profile a_container_cannot_change

# The conformance tests of CWL v1.2; docs/cwl.md says what to bring: make conformance SUITE=DIR IMAGES=DIR
.PHONY: conformance
conformance: deps deps-labs
	$(build_programs)
	tests/labs/cwl-conformance "$(SUITE)" "$(IMAGES)" $(CWLTEST_FLAGS)

# The units of contrib/ as they are, under a systemd of their own: as root, where systemd is installed.
.PHONY: test-units
test-units: deps deps-labs
	cargo build --workspace --bins --locked
	tests/labs/test-units target/debug slurm
	tests/labs/test-units target/debug condor

# With a real NVIDIA GPU: containers get the granted one and no other. As root, on a machine that has one.
.PHONY: test-gpu
test-gpu: deps
	cargo test --locked -p crunch-run --features fail-points/enabled --test integration -- --ignored gpu_real::

check: deps
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked $(fail_points) -- -D warnings
	contrib/check-dependencies

# Figures, not pass or fail.
bench: deps deps-labs
	cargo build --release --workspace --bins --locked
	cargo bench --locked --workspace --bench suite --bench scale --bench engine --bench overhead --bench parts --bench capture --bench api --bench floods --bench plan

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

# Everything that reads what strangers write, with input that nobody would write and a nightly compiler: tests/fuzz/README.md.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= request listing token locator manifest image output_glob cdi slurm condor demand
.PHONY: fuzz
fuzz: deps
	for target in $(FUZZ_TARGETS); do \
	  tests/fuzz/run $$target -max_total_time=$(FUZZ_SECONDS) -max_len=20000 -timeout=20 -verbosity=0 -print_final_stats=1 || exit 1; done

# A throwaway Slurm cluster or HTCondor pool on loopback, to try things on; prints the lines to source.
lab-slurm: deps-labs
	bash tests/labs/slurm-up $(LAB)/slurm $(LAB_OPTIONS)
	@echo "# end it with: bash tests/labs/slurm-down $(LAB)/slurm"
lab-condor: deps-labs
	bash tests/labs/condor-up $(LAB)/condor $(LAB_OPTIONS)
	@echo "# end it with: bash tests/labs/condor-down $(LAB)/condor"

programs = dispatch dispatch-api dispatch-local dispatch-slurm dispatch-condor dispatch-overseer crunch-run
man = $(DESTDIR)$(prefix)/share/man/man1
bash_completions = $(DESTDIR)$(prefix)/share/bash-completion/completions
fish_completions = $(DESTDIR)$(prefix)/share/fish/vendor_completions.d
# Programs for other machines, without what only a debugger reads: that is in target/dist/debug, found by its link.
.PHONY: dist stripped
dist: stripped sbom
	ls -l target/dist/bin target/dist/sbom
stripped: deps
	cargo build --release --locked $(patsubst %,-p %,$(patsubst dispatch,dispatch-cli,$(programs)))
	install -d target/dist/bin target/dist/debug
	for program in $(programs); do \
	  objcopy --only-keep-debug target/release/$$program target/dist/debug/$$program.debug && \
	  objcopy --strip-all --add-gnu-debuglink=target/dist/debug/$$program.debug \
	    target/release/$$program target/dist/bin/$$program || exit 1; done

# What each program is built from, as CycloneDX: target/dist/sbom/PROGRAM.cdx.json.
CYCLONEDX = target/tools/bin/cargo-cyclonedx
$(CYCLONEDX):
	cargo install --locked --root target/tools cargo-cyclonedx@0.5.9
.PHONY: sbom
sbom: deps $(CYCLONEDX)
	install -d target/dist/sbom
	$(CYCLONEDX) cyclonedx --format json --describe binaries --target $(shell rustc -vV | sed -n 's/^host: //p')
	for program in $(programs); do \
	  mv $$(echo $$program | sed 's/^dispatch$$/dispatch-cli/')/$${program}_bin.cdx.json target/dist/sbom/$$program.cdx.json || exit 1; done
	find . -name '*.cdx.json' -not -path './target/*' -delete

install: stripped
	install -d $(DESTDIR)$(prefix)/bin $(man)
	install -m 755 $(programs:%=target/dist/bin/%) $(DESTDIR)$(prefix)/bin
	for program in $(filter-out crunch-run,$(programs)); do \
	  target/dist/bin/$$program man --dir $(man) || exit 1; done
	target/dist/bin/crunch-run man >$(man)/crunch-run.1
	install -d $(bash_completions) $(fish_completions)
	target/dist/bin/dispatch completions bash >$(bash_completions)/dispatch
	target/dist/bin/dispatch completions fish >$(fish_completions)/dispatch.fish

.PHONY: uninstall
uninstall:
	rm -f $(programs:%=$(DESTDIR)$(prefix)/bin/%) $(programs:%=$(man)/%.1) $(man)/dispatch-*.1
	rm -f $(bash_completions)/dispatch $(fish_completions)/dispatch.fish

# A crunch-run that needs no library of the node: any Linux of this processor will do. 13 MB, for HTCondor to carry along.
static_target = $(shell uname -m)-unknown-linux-musl
.PHONY: static
static: deps
	contrib/install-deps static
	rustup target add $(static_target)
	cargo build --release --locked --target $(static_target) -p crunch-run
	install -d target/static
	install -s -m 755 target/$(static_target)/release/crunch-run target/static/crunch-run
	target/static/crunch-run --version

.PHONY: check-disk-space
check-disk-space:
	tests/labs/check-disk-space

deps:
	contrib/install-deps

.PHONY: deps-labs deps-nextest
deps-labs: deps-nextest
	contrib/install-deps labs
deps-nextest:
	contrib/install-deps nextest
