//! A scheduler for tests: acts as the command it is called by (sbatch, condor_q, …), with faults as
//! scripted.

fn main() -> std::process::ExitCode {
    suite_tests::fake_sched::main()
}
