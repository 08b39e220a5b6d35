//! dispatch-condor: hands containers to HTCondor, one job each.

fn main() -> std::process::ExitCode {
    dispatch_condor::main()
}
