//! The engines under test: flags of crunch-run for each, and what a container leaves on this node.

use std::path::Path;

use arvados_client::ContainerUuid;
use bollard::query_parameters::ListContainersOptionsBuilder;
use bollard::{API_DEFAULT_VERSION, Docker};

use crate::contract::{daemons, nobody};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Builtin,
    Crun,
    Runc,
    Apptainer,
    Docker,
    Podman,
    /// crun as an ordinary user.
    CrunAsNobody,
    RuncAsNobody,
    ApptainerAsNobody,
    PodmanAsNobody,
    /// An ordinary user in the group of root's daemon.
    DockerAsNobody,
}

impl Engine {
    /// Whether the engine can be tested here. False only on a developer's machine, with a message.
    pub fn can_run(self) -> bool {
        match self {
            Self::Builtin => crate::run_lab::can_run(),
            Self::Crun | Self::CrunAsNobody => crate::run_lab::can_run_with("crun"),
            Self::Runc | Self::RuncAsNobody => crate::run_lab::can_run_with("runc"),
            Self::Apptainer | Self::ApptainerAsNobody => crate::run_lab::can_run_with("apptainer"),
            Self::Docker | Self::DockerAsNobody => crate::run_lab::can_run_with("dockerd"),
            Self::Podman | Self::PodmanAsNobody => crate::run_lab::can_run_with("podman"),
        }
    }

    /// Scenarios that this engine cannot pass; `docs/engines.md` names each.
    pub fn differs_in(self, scenario: &str) -> bool {
        const NO_LIMITS: &[&str] = &[
            // crunch-run watches memory then, and kills the whole container.
            "exit_0_after_a_child_was_killed_for_memory_is_a_warning",
            "the_limit_of_processes_is_kept",
            "the_number_of_cpus_is_kept",
        ];
        const NOBODYS: &[&str] = &["files_nobody_may_read_are_saved"];
        const ONE_ID: &[&str] = &[
            "a_user_by_name",
            "a_user_by_number",
            "any_user_may_write_its_output",
        ];
        const APPTAINERS: &[&str] = &[
            "a_container_sees_only_its_own_processes",
            "a_user_by_name",
            "a_user_by_number",
            "environment_is_what_was_given",
            "the_hostname_is_its_own",
        ];
        let differences: &[&[&str]] = match self {
            Self::Builtin | Self::Crun | Self::Runc | Self::Docker | Self::Podman => &[],
            Self::DockerAsNobody => &[&["deleted_files_count_as_scratch"]],
            Self::Apptainer => &[NO_LIMITS, APPTAINERS, &["proc_and_sys_are_safe"]],
            Self::CrunAsNobody => &[NO_LIMITS, NOBODYS],
            Self::RuncAsNobody => &[NO_LIMITS, NOBODYS, &["a_user_by_name", "a_user_by_number"]],
            Self::ApptainerAsNobody => &[NO_LIMITS, NOBODYS, APPTAINERS],
            Self::PodmanAsNobody => &[NO_LIMITS, NOBODYS, ONE_ID],
        };
        let mut differences = differences.iter().copied().flatten();
        differences.any(|name| *name == scenario)
    }

    pub fn flags(self) -> Vec<String> {
        let of = |name: &str, socket: &Path| {
            vec![
                format!("--runtime-engine={name}"),
                format!("--docker-socket={}", socket.display()),
            ]
        };
        let flag = match self {
            Self::Docker => return of("docker", &daemons::docker().socket),
            Self::DockerAsNobody => return of("docker", &daemons::docker_for_nobody().socket),
            Self::Podman => return of("podman", &daemons::podman().socket),
            Self::PodmanAsNobody => return of("podman", &daemons::podman_as_nobody().socket),
            Self::Builtin => "--runtime-engine=builtin",
            Self::Crun | Self::CrunAsNobody => "--oci-runtime=crun",
            Self::Runc | Self::RuncAsNobody => "--oci-runtime=runc",
            Self::Apptainer | Self::ApptainerAsNobody => "--runtime-engine=apptainer",
        };
        vec![flag.to_owned()]
    }

    /// Differences; `docs/engines.md` lists them for people.
    pub fn makes_a_missing_cwd(self) -> bool {
        matches!(
            self,
            Self::Docker | Self::DockerAsNobody | Self::Podman | Self::PodmanAsNobody
        )
    }

    /// Whether the runtime finds out only at exec; then it writes to stderr and exits.
    pub fn finds_bad_programs_late(self) -> bool {
        matches!(
            self,
            Self::Docker | Self::DockerAsNobody | Self::Podman | Self::PodmanAsNobody
        )
    }

    pub fn is_nobodys(self) -> bool {
        matches!(
            self,
            Self::CrunAsNobody
                | Self::RuncAsNobody
                | Self::ApptainerAsNobody
                | Self::PodmanAsNobody
                | Self::DockerAsNobody
        )
    }

    /// Whether a daemon owns the containers, so that they do not end with crunch-run.
    pub fn is_a_service(self) -> bool {
        matches!(
            self,
            Self::Docker | Self::DockerAsNobody | Self::Podman | Self::PodmanAsNobody
        )
    }

    /// A client of the daemon.
    pub async fn client(self) -> Docker {
        let daemon = match self {
            Self::Docker => daemons::docker(),
            Self::DockerAsNobody => daemons::docker_for_nobody(),
            Self::Podman => daemons::podman(),
            Self::PodmanAsNobody => daemons::podman_as_nobody(),
            other => panic!("{other:?} has no daemon"),
        };
        let socket = daemon.socket.to_string_lossy();
        let client = Docker::connect_with_unix(&socket, 60, API_DEFAULT_VERSION).unwrap();
        client.negotiate_version().await.unwrap()
    }

    /// What the container has left on the node; should be empty.
    pub async fn left_overs(self, uuid: &ContainerUuid) -> Vec<String> {
        if !self.is_a_service() {
            let paths = match self.is_nobodys() {
                true => nobody::left_overs(uuid),
                false => crate::run_lab::left_overs(uuid),
            };
            let paths = paths.iter().map(|path| path.display().to_string());
            return paths.collect();
        }
        let client = self.client().await;
        // Lists only this container: others may be in a state of podman's that the API cannot
        // express.
        let all = ListContainersOptionsBuilder::new()
            .all(true)
            .filters(&[("name", vec![uuid.as_str()])].into())
            .build();
        let until = std::time::Instant::now() + suite_tests::STEP_TIMEOUT;
        let names = loop {
            match client.list_containers(Some(all.clone())).await {
                Ok(names) => break names,
                Err(error) => assert!(std::time::Instant::now() < until, "{error}"),
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        };
        names
            .into_iter()
            .flat_map(|container| container.names.unwrap_or_default())
            .filter(|name| name.contains(uuid.as_str()))
            .collect()
    }
}
