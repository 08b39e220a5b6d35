//! arv-copy as it comes from the registry of Python packages copies a project from one server to
//! another.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use arvados_client::Client;
use arvados_client::client::Call;
use serde_json::{Value, json};
use suite_tests::STEP_TIMEOUT;
use suite_tests::image;
use suite_tests::program::{Program, write_script};
use suite_tests::stack::{client, environment, wait_for};

/// A server and its user.
struct Server {
    program: Program,
    ready: Value,
    user: Client,
}

impl Server {
    fn start(cluster: &str, dir: &Path) -> Self {
        let state = dir.join(cluster);
        let args = [
            "--state-dir",
            state.to_str().unwrap(),
            "--cluster-id",
            cluster,
        ];
        let listen = ["--listen", "127.0.0.1:0"];
        let args = [args.as_slice(), &listen].concat();
        let log = dir.join(format!("{cluster}.log"));
        let mut program = Program::new("dispatch-api", &log, &args, &[]);
        program.start();
        let ready = wait_for("dispatch-api to be ready", STEP_TIMEOUT, || {
            serde_json::from_str::<Value>(program.stdout_text().lines().next()?).ok()
        });
        let user = client(&ready, "user");
        Self {
            program,
            ready,
            user,
        }
    }

    async fn create(&self, path: &str, kind: &str, attributes: Value) -> Value {
        let call = Call::post(path, json!({ kind: attributes }));
        self.user.send(call).await.unwrap()
    }

    /// A file with the variables of this server, as arv-copy reads one for each cluster.
    fn write_settings(&self, file: &Path) {
        let variables = environment(&self.ready).into_iter();
        let mut text: String = variables
            .filter(|(name, _)| name.starts_with("ARVADOS_"))
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        text += "ARVADOS_API_HOST_INSECURE=true\n";
        fs::write(file, text).unwrap();
    }
}

#[tokio::test]
async fn a_project_is_copied_with_its_collections_workflows_and_projects() {
    let dir = tempfile::tempdir().unwrap();
    let settings = dir.path().join(".config/arvados");
    fs::create_dir_all(&settings).unwrap();
    let [from, to] = ["aaaaa", "bbbbb"].map(|cluster| {
        let server = Server::start(cluster, dir.path());
        server.write_settings(&settings.join(format!("{cluster}.conf")));
        server
    });
    // It asks arvados-cwl-runner for the files of a workflow, and does not hand on that the
    // certificate of the server is its own.
    let programs = suite_tests::python_clients();
    let runner = format!(
        "#!/bin/sh\nARVADOS_API_HOST_INSECURE=true exec {}/arvados-cwl-runner \"$@\"\n",
        programs.display()
    );
    let wrappers = dir.path().join("bin");
    fs::create_dir(&wrappers).unwrap();
    write_script(&wrappers.join("arvados-cwl-runner"), &runner);
    let path = std::env::var_os("PATH").unwrap();
    let path: Vec<PathBuf> = std::iter::once(wrappers)
        .chain(std::env::split_paths(&path))
        .collect();
    let clients = |program: &str| {
        let mut command = Command::new(programs.join(program));
        command
            .env_clear()
            .env("PATH", std::env::join_paths(&path).unwrap())
            .env("HOME", dir.path())
            .env("ARVADOS_API_HOST_INSECURE", "true");
        command
    };

    let project = |name: &str, owner: Option<&Value>| json!({"name": name, "group_class": "project", "owner_uuid": owner});
    let outer = from.create("groups", "group", project("study", None)).await;
    let inner = project("raw", Some(&outer["uuid"]));
    let inner = from.create("groups", "group", inner).await;
    let file = dir.path().join("reads.txt");
    fs::write(&file, "ACGT\n").unwrap();
    let put = clients("arv-put")
        .envs(environment(&from.ready))
        .args(["--no-progress", "--name", "reads", "--project-uuid"])
        .arg(inner["uuid"].as_str().unwrap())
        .arg(&file)
        .output()
        .unwrap();
    assert!(put.status.success(), "{put:?}");
    let image = image::add(&environment(&from.ready), dir.path());
    // Every workflow depends on the image of its runner, too.
    let (_, version) = suite_tests::python_image("arvados-cwl-runner", None);
    let runner = format!("arvados/jobs:{version}");
    image::add_named(
        &environment(&from.ready),
        &runner,
        &dir.path().join("rootfs"),
    );
    let tool = json!({"cwlVersion": "v1.2", "$graph": [{
        "class": "CommandLineTool", "id": "#main", "baseCommand": "true", "inputs": [], "outputs": [],
        "requirements": {"DockerRequirement": {"dockerPull": image}},
    }]});
    let workflow = json!({
        "name": "count", "owner_uuid": outer["uuid"], "definition": tool.to_string(),
    });
    from.create("workflows", "workflow", workflow).await;

    let target = to.create("groups", "group", project("copies", None)).await;
    let copied = clients("arv-copy")
        .args(["--src", "aaaaa", "--dst", "bbbbb", "--project-uuid"])
        .arg(target["uuid"].as_str().unwrap())
        .arg(outer["uuid"].as_str().unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&copied.stderr);
    assert!(copied.status.success(), "{said}");

    let contents = format!(
        "groups/{}/contents?recursive=true",
        target["uuid"].as_str().unwrap()
    );
    let contents: Value = to.user.send(Call::get(contents)).await.unwrap();
    let found = |kind: &str, name: &str| {
        let mut items = contents["items"].as_array().unwrap().iter();
        items
            .find(|item| item["kind"] == kind && item["name"] == name)
            .unwrap_or_else(|| panic!("no {kind} {name} in {contents}\n{said}"))
    };
    let study = found("arvados#group", "study");
    let raw = found("arvados#group", "raw");
    assert_eq!(raw["owner_uuid"], study["uuid"]);
    assert_eq!(
        found("arvados#workflow", "count")["owner_uuid"],
        study["uuid"]
    );
    let reads = found("arvados#collection", "reads");
    assert_eq!(reads["owner_uuid"], raw["uuid"]);
    drop(from.program);
    let got = clients("arv-get")
        .envs(environment(&to.ready))
        .arg(format!("{}/reads.txt", reads["uuid"].as_str().unwrap()))
        .output()
        .unwrap();
    assert_eq!(got.stdout, b"ACGT\n", "{got:?}");
}
