//! Changes the owner of files that a daemon's container left under other users. A helper container
//! runs this program as root for that: otherwise an ordinary user could neither read nor remove
//! them.
//!
//! The helper needs no network and nothing of its image: this program and its libraries are bound
//! into it.

pub mod helper;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bollard::models::{ContainerCreateBody, HostConfig, Mount};
use bollard::query_parameters::{CreateContainerOptionsBuilder, ListImagesOptionsBuilder};

use self::helper::CHOWN_ARGUMENT;

use super::{DockerEngine, Flavour, create, recover, wait};
use crate::{Bind, EngineError};

/// Timeout of a helper: it visits each file once.
const HELPER_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval between two polls of a helper.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Directory of our binds in the helper.
const HELPER_DIR: &str = "/.crunch-run";
/// Capabilities of the helper: to enter directories, and to change owners and modes.
const CAPABILITIES: [&str; 3] = ["CHOWN", "DAC_OVERRIDE", "FOWNER"];

impl DockerEngine {
    /// Makes this user the owner of other users' files below `dir`. Returns whether there were any.
    /// The helper can run in any image.
    pub(super) async fn take_over_files(
        &self,
        name: &str,
        image: Option<&str>,
        dir: &Path,
    ) -> Result<bool, EngineError> {
        let what = || format!("{} has files of another user", dir.display());
        let failed = |source: io::Error| EngineError::io(what(), source);
        if rustix::process::geteuid().is_root()
            || !has_files_of_others(dir).await.map_err(failed)?
        {
            return Ok(false);
        }
        let client = self.client().await?;
        let image = match image {
            Some(image) => image.to_owned(),
            None => self.any_image().await?,
        };
        let program = Program::this().map_err(failed)?;
        let options = CreateContainerOptionsBuilder::new()
            .name(&create::name(name))
            .build();
        let body = body(self.flavour, name, image, &program, dir);
        let created = client
            .create_container(Some(options), body)
            .await
            .map_err(|error| self.failed(&what(), error))?;
        let done = match client.start_container(&created.id, None).await {
            Ok(()) => self.wait_for_helper(&created.id).await,
            Err(error) => Err(io::Error::other(error)),
        };
        let removed = recover::remove(client, &created.id, HELPER_TIMEOUT).await;
        done.map_err(failed)?;
        removed.map_err(|error| self.failed("a helper container cannot be removed", error))?;
        Ok(true)
    }

    async fn any_image(&self) -> Result<String, EngineError> {
        let options = ListImagesOptionsBuilder::new().build();
        let images = self.client().await?.list_images(Some(options)).await;
        let images = images.map_err(|error| self.failed("it does not list its images", error))?;
        let first = images.into_iter().next().map(|image| image.id);
        first.ok_or_else(|| {
            let what = format!(
                "{} has no image for a helper container",
                self.flavour.name()
            );
            EngineError::io(what, io::ErrorKind::NotFound)
        })
    }

    async fn wait_for_helper(&self, id: &str) -> io::Result<()> {
        let client = self.client().await.map_err(io::Error::other)?;
        let until = Instant::now() + HELPER_TIMEOUT;
        loop {
            let state = wait::state(client, id).await;
            let state = state.map_err(io::Error::other)?;
            match state.exit_code.filter(|_| state.running != Some(true)) {
                Some(0) => return Ok(()),
                Some(code) => {
                    let reason = state.error.unwrap_or_default();
                    return Err(io::Error::other(format!(
                        "the helper container that was to change their owner exited with {code} {reason}"
                    )));
                }
                None if Instant::now() > until => return Err(io::ErrorKind::TimedOut.into()),
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }
}

/// This program and the files its loader needs.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    file: PathBuf,
    /// The dynamic loader; a static program has none.
    loader: Option<PathBuf>,
    /// Directories of its libraries.
    libraries: BTreeSet<PathBuf>,
}

impl Program {
    fn this() -> io::Result<Self> {
        let file = fs::read_link("/proc/self/exe")?;
        if !file.exists() {
            let gone = format!("the program {} was replaced", file.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, gone));
        }
        let maps = fs::read_to_string("/proc/self/maps")?;
        Ok(Self::of(file, &maps))
    }

    /// From the text of `/proc/self/maps`.
    fn of(file: PathBuf, maps: &str) -> Self {
        let shared: BTreeSet<&Path> = maps
            .lines()
            .filter_map(|line| Some(Path::new(&line[line.find('/')?..])))
            .filter(|path| *path != file && name_of(path).contains(".so"))
            .collect();
        let is_loader = |path: &&Path| {
            let name = name_of(path);
            ["ld-", "ld64.", "ld."]
                .iter()
                .any(|start| name.starts_with(start))
        };
        let loader = shared.iter().copied().find(is_loader).map(Path::to_owned);
        let libraries = shared
            .iter()
            .filter_map(|path| Some(path.parent()?.to_owned()))
            .collect();
        Self {
            file,
            loader,
            libraries,
        }
    }

    /// The program's path inside the helper, with the arguments that run it on `dir`.
    fn command(&self, dir: &str) -> Vec<String> {
        let mut command = Vec::new();
        if let Some(loader) = &self.loader {
            let bind_target = |dir: &Path| {
                let index = self.libraries.iter().position(|known| known == dir);
                format!("{HELPER_DIR}/lib{}", index.unwrap_or_default())
            };
            let own = loader.parent().map(bind_target).unwrap_or_default();
            let all: Vec<String> = self.libraries.iter().map(|dir| bind_target(dir)).collect();
            command.push(format!("{own}/{}", name_of(loader)));
            command.extend(["--library-path".to_owned(), all.join(":")]);
        }
        command.push(format!("{HELPER_DIR}/crunch-run"));
        command.extend([CHOWN_ARGUMENT.to_owned(), dir.to_owned()]);
        command
    }

    fn mounts(&self) -> Vec<Mount> {
        let program = bind(&self.file, format!("{HELPER_DIR}/crunch-run"), false);
        let libraries = self.libraries.iter().enumerate();
        let libraries = libraries.filter(|_| self.loader.is_some());
        let libraries = libraries.map(|(n, dir)| bind(dir, format!("{HELPER_DIR}/lib{n}"), false));
        std::iter::once(program).chain(libraries).collect()
    }
}

fn name_of(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
}

fn bind(host: &Path, target: String, writable: bool) -> Mount {
    create::mount(&Bind {
        host: host.to_owned(),
        target: target.into(),
        writable,
    })
}

fn body(
    flavour: Flavour,
    name: &str,
    image: String,
    program: &Program,
    dir: &Path,
) -> ContainerCreateBody {
    let files = format!("{HELPER_DIR}/files");
    let mut mounts = program.mounts();
    mounts.push(bind(dir, files.clone(), true));
    let mut command = program.command(&files);
    let arguments = command.split_off(1);
    ContainerCreateBody {
        image: Some(image),
        entrypoint: Some(command),
        cmd: Some(arguments),
        user: Some("0:0".to_owned()),
        working_dir: Some("/".to_owned()),
        // The image's own would change what the loader loads.
        env: Some(vec![
            "LD_PRELOAD=".to_owned(),
            "LD_LIBRARY_PATH=".to_owned(),
        ]),
        labels: Some(create::labels(name)),
        healthcheck: Some(create::no_health_check()),
        host_config: Some(HostConfig {
            mounts: Some(mounts),
            network_mode: Some("none".to_owned()),
            cap_drop: Some(vec!["ALL".to_owned()]),
            cap_add: Some(CAPABILITIES.map(str::to_owned).into()),
            // Otherwise SELinux denies access to files with the label of another container.
            security_opt: Some(vec![
                "no-new-privileges".to_owned(),
                "label=disable".to_owned(),
            ]),
            // Root of the node, even if the daemon maps the users of containers.
            userns_mode: (flavour == Flavour::Docker).then(|| "host".to_owned()),
            log_config: Some(create::no_log()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

/// Whether `dir` has files of another user. False if it does not exist.
async fn has_files_of_others(dir: &Path) -> io::Result<bool> {
    let (dir, own) = (dir.to_owned(), rustix::process::geteuid().as_raw());
    let found = tokio::task::spawn_blocking(move || has_files_not_of(own, &dir)).await;
    found.map_err(io::Error::other)?
}

fn is_unreadable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    )
}

fn has_files_not_of(user: u32, dir: &Path) -> io::Result<bool> {
    let mut to_do = vec![dir.to_owned()];
    while let Some(dir) = to_do.pop() {
        let entries = match fs::read_dir(&dir) {
            // Other users cannot have made files in a directory that its owner cannot enter.
            Err(error) if is_unreadable(&error) => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let facts = entry.metadata()?;
            if facts.uid() != user {
                return Ok(true);
            }
            if facts.is_dir() {
                to_do.push(entry.path());
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn a_program_runs_with_the_libraries_it_has_now() {
        let maps = "55d0-55d1 r--p 0000 fe:00 12 /opt/my tools/crunch-run\n\
             7f00-7f01 r-xp 0000 fe:00 13 /usr/lib/x86_64-linux-gnu/libc-2.31.so\n\
             7f01-7f02 r-xp 0000 fe:00 13 /usr/lib/x86_64-linux-gnu/libc-2.31.so\n\
             7f02-7f03 r-xp 0000 fe:00 14 /opt/gcc/libgcc_s.so.1\n\
             7f03-7f04 r--p 0000 fe:00 15 /usr/lib/locale/C.utf8/LC_CTYPE\n\
             7f04-7f05 rw-p 0000 00:00 0 \n\
             7f05-7f06 r-xp 0000 fe:00 16 /usr/lib/x86_64-linux-gnu/ld-2.31.so\n\
             7ffc-7ffd rw-p 0000 00:00 0 [stack]\n";
        let program = Program::of("/opt/my tools/crunch-run".into(), maps);
        assert_eq!(
            program.command("/files"),
            [
                "/.crunch-run/lib1/ld-2.31.so",
                "--library-path",
                "/.crunch-run/lib0:/.crunch-run/lib1",
                "/.crunch-run/crunch-run",
                CHOWN_ARGUMENT,
                "/files"
            ]
        );
        let sources = |program: &Program| -> Vec<String> {
            let mounts = program.mounts().into_iter();
            mounts.filter_map(|mount| mount.source).collect()
        };
        let expected = [
            "/opt/my tools/crunch-run",
            "/opt/gcc",
            "/usr/lib/x86_64-linux-gnu",
        ];
        assert_eq!(sources(&program), expected);
        // A static one.
        let alone = Program::of(
            "/opt/crunch-run".into(),
            "55d0-55d1 r--p 0 fe:00 12 /opt/crunch-run\n",
        );
        assert_eq!(
            alone.command("/f"),
            ["/.crunch-run/crunch-run", CHOWN_ARGUMENT, "/f"]
        );
        assert_eq!(sources(&alone), ["/opt/crunch-run"]);
    }

    #[test]
    fn files_of_others_are_found_however_deep() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "x").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", deep.join("link")).unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert!(!has_files_not_of(own, dir.path()).unwrap());
        assert!(!has_files_not_of(own, &dir.path().join("gone")).unwrap());
        assert!(has_files_not_of(own + 1, dir.path()).unwrap());
        if chown(deep.join("file"), Some(65534), None).is_ok() {
            assert!(has_files_not_of(own, dir.path()).unwrap());
        }
    }
}
