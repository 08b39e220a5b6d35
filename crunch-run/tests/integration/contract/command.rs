//! The command: its arguments, variables, working directory and user.

use serde_json::json;

use crate::contract::lab::Lab;

pub async fn the_image_s_entrypoint_gets_the_command(lab: &Lab) {
    let config =
        json!({"Env": ["PATH=/bin"], "Entrypoint": ["echo", "entry"], "Cmd": ["not", "this"]});
    let image = lab.image(config).await;
    let ended = lab
        .run(&["a", "b c"], json!({"container_image": image}))
        .await;
    assert_eq!(ended.stdout(), ["entry a b c"]);
}

pub async fn arguments_arrive_unchanged(lab: &Lab) {
    let odd = ["", " a  b ", "$HOME", "'\"", "*", "\\", "ünï", "-n", "a\nb"];
    let mut command = vec!["sh", "-c", "for a; do echo \"<$a>\"; done", "sh"];
    command.extend(odd);
    let ended = lab.run(&command, json!({})).await;
    let expected: Vec<String> = odd.iter().map(|a| format!("<{a}>")).collect();
    assert_eq!(ended.stdout().join("\n"), expected.join("\n"));
}

pub async fn the_image_s_path_finds_the_command(lab: &Lab) {
    let image = lab.image(json!({"Env": ["PATH=/nowhere:/bin"]})).await;
    let ended = lab
        .run(&["echo", "found"], json!({"container_image": image}))
        .await;
    assert_eq!(ended.stdout(), ["found"]);
}

pub async fn the_request_s_path_finds_the_command(lab: &Lab) {
    let image = lab.image(json!({"Env": ["PATH=/nowhere"]})).await;
    let more = json!({"container_image": image, "environment": {"PATH": "/elsewhere:/bin"}});
    assert_eq!(lab.run(&["echo", "found"], more).await.stdout(), ["found"]);
}

pub async fn environment_is_what_was_given(lab: &Lab) {
    let given = json!({"A": "1", "EMPTY": "", "SPACES": " a b ", "EQUALS": "x=y"});
    let ended = lab.run(&["env"], json!({"environment": given})).await;
    let mut variables = ended.stdout();
    // Everything else is a custom of engines, not a leak of the node's.
    variables.retain(|v| !v.starts_with("HOME=") && !v.starts_with("HOSTNAME="));
    variables.retain(|v| *v != "container=podman" && *v != "TERM=xterm");
    variables.sort_unstable();
    assert_eq!(
        variables,
        ["A=1", "EMPTY=", "EQUALS=x=y", "PATH=/bin", "SPACES= a b "]
    );
}

pub async fn the_request_s_environment_wins(lab: &Lab) {
    let image = lab
        .image(json!({"Env": ["PATH=/bin", "A=image", "B=image"]}))
        .await;
    let more = json!({"container_image": image, "environment": {"A": "request"}});
    assert_eq!(
        lab.sh_with("echo $A $B", more).await.stdout(),
        ["request image"]
    );
}

pub async fn default_cwd_is_the_image_s(lab: &Lab) {
    let image = lab
        .image(json!({"Env": ["PATH=/bin"], "WorkingDir": "/etc"}))
        .await;
    let more = json!({"container_image": image, "cwd": "."});
    assert_eq!(lab.run(&["pwd"], more).await.stdout(), ["/etc"]);
}

pub async fn an_absolute_cwd(lab: &Lab) {
    let ended = lab.run(&["pwd"], json!({"cwd": "/out"})).await;
    assert_eq!(ended.stdout(), ["/out"]);
}

pub async fn a_cwd_that_is_not_there(lab: &Lab) {
    let ended = lab.run(&["pwd"], json!({"cwd": "/no/such/place"})).await;
    if lab.engine.makes_a_missing_cwd() {
        assert_eq!(ended.stdout(), ["/no/such/place"]);
        return;
    }
    assert!(ended.refusal().contains("/no/such/place"));
}

pub async fn a_user_by_name(lab: &Lab) {
    let image = lab
        .image(json!({"Env": ["PATH=/bin"], "User": "ann"}))
        .await;
    let ended = lab
        .sh_with("id -u; id -g", json!({"container_image": image}))
        .await;
    assert_eq!(ended.stdout(), ["1000", "100"]);
}

pub async fn a_user_by_number(lab: &Lab) {
    let image = lab
        .image(json!({"Env": ["PATH=/bin"], "User": "4711:4712"}))
        .await;
    let ended = lab
        .sh_with("id -u; id -g", json!({"container_image": image}))
        .await;
    assert_eq!(ended.stdout(), ["4711", "4712"]);
}

pub async fn a_user_that_is_not_there(lab: &Lab) {
    let image = lab
        .image(json!({"Env": ["PATH=/bin"], "User": "nobody-here"}))
        .await;
    let ended = lab.run(&["true"], json!({"container_image": image})).await;
    assert!(ended.refusal().contains("nobody-here"));
}

pub async fn a_large_environment_arrives(lab: &Lab) {
    let long = "x".repeat(100_000);
    let mut given = json!({"LONG": long});
    for number in 0..300 {
        given[format!("V{number}")] = json!(number.to_string());
    }
    let script = "echo ${#LONG} $V0 $V299; env | grep -c '^V[0-9]*='";
    let ended = lab.sh_with(script, json!({"environment": given})).await;
    assert_eq!(ended.stdout(), ["100000 0 299", "300"]);
}

pub async fn thousands_of_arguments_arrive(lab: &Lab) {
    let numbers: Vec<String> = (0..20_000)
        .map(|number| format!("argument-{number}"))
        .collect();
    let mut command = vec![
        "sh",
        "-c",
        "echo $#; for last; do :; done; echo $1 $last",
        "sh",
    ];
    command.extend(numbers.iter().map(String::as_str));
    let ended = lab.run(&command, json!({})).await;
    assert_eq!(ended.stdout(), ["20000", "argument-0 argument-19999"]);
}

pub async fn an_argument_longer_than_the_kernel_takes(lab: &Lab) {
    let long = "x".repeat(200_000);
    let ended = lab.run(&["echo", &long], json!({})).await;
    let why = ended.refusal();
    assert!(why.contains("too long for the kernel"), "{why}");
}
