//! arvados-cwl-runner as it comes from the registry of Python packages, for the tests of workflows.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use suite_tests::image::add_named;
use suite_tests::{python_clients, python_image};

/// A user of a server who runs workflows, and the directory of this user.
pub struct CwlUser {
    dir: PathBuf,
    environment: Vec<(&'static str, String)>,
}

impl CwlUser {
    /// With copies of the workflows in `dir`: in a checkout, the runner runs git.
    pub fn new(dir: &Path, environment: Vec<(&'static str, String)>) -> Self {
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/end_to_end/cwl");
        for file in std::fs::read_dir(ours).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), dir.join(file.file_name())).unwrap();
        }
        let dir = dir.to_owned();
        Self { dir, environment }
    }

    fn command(&self, client: &str) -> Command {
        let mut command = Command::new(python_clients().join(client));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", &self.dir)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.dir);
        command
    }

    /// Stores the image in which runners run.
    pub fn add_runner_image(&self) {
        let (root, version) = python_image("arvados-cwl-runner", None);
        let name = format!("arvados/jobs:{version}");
        add_named(&self.environment, &name, &root);
    }

    /// Writes the inputs of a workflow to a file.
    pub fn inputs(&self, name: &str, inputs: &Value) -> PathBuf {
        let path = self.dir.join(format!("{name}.json"));
        std::fs::write(&path, inputs.to_string()).unwrap();
        path
    }

    /// Stores a file, and returns its location.
    pub fn put(&self, file: &str) -> String {
        let mut put = self.command("arv-put");
        let put = put.args(["--no-progress", "--portable-data-hash", file]);
        let hash = String::from_utf8(put.output().unwrap().stdout).unwrap();
        format!("keep:{}/{file}", hash.trim_end())
    }

    /// Starts the runner.
    pub fn start(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Runner {
        let mut command = self.command("arvados-cwl-runner");
        let command = command.args(arguments);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Runner(Some(command.spawn().unwrap()))
    }

    /// The text of the output `text` of a workflow that has succeeded.
    pub fn text(&self, runner: Runner) -> String {
        let (output, said) = ended(runner);
        assert!(output.status.success(), "{said}");
        let found: Value = serde_json::from_slice(&output.stdout).expect(&said);
        let location = found["text"]["location"].as_str().expect(&said);
        let mut read = self.command("arv-get");
        let read = read.arg(location.trim_start_matches("keep:")).output();
        String::from_utf8(read.unwrap().stdout).unwrap()
    }
}

/// A runner; it is killed if the test ends before it.
pub struct Runner(Option<Child>);

impl Drop for Runner {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// What the runner printed at its end.
pub fn ended(mut runner: Runner) -> (Output, String) {
    let child = runner.0.take().unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}
