//! dispatch-slurm: runs the containers of an Arvados-style queue as Slurm jobs, one job each.

fn main() -> std::process::ExitCode {
    dispatch_slurm::main()
}
