//! Validates `runtime_constraints` and `scheduling_parameters` and converts them to their stored
//! form.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};

const GIB: i64 = 1 << 30;

type Object = Map<String, Value>;

/// Maximum number of CPUs and of devices: programs read 32-bit numbers.
const MAX_COUNT: i64 = i32::MAX as i64;

/// The stored form of runtime constraints. A `committed` request needs RAM and CPUs.
pub fn runtime(given: &Value, committed: bool) -> Result<Value> {
    let given = object("runtime_constraints", given)?;
    let mut problems = Vec::new();
    let caches = ["keep_cache_ram", "keep_cache_disk"];
    let known = [&["API", "ram", "vcpus", "gpu", "cuda"][..], &caches].concat();
    for key in given.keys().filter(|key| !known.contains(&key.as_str())) {
        problems.push(format!("Runtime constraints key '{key}' is not known"));
    }
    let mut stored = Object::new();
    let api = given.get("API").cloned().unwrap_or(json!(false));
    if !api.is_boolean() {
        problems.push(format!(
            "Runtime constraints [API]={api} must be true or false"
        ));
    }
    stored.insert("API".into(), api);
    for key in ["ram", "vcpus"] {
        let value = given.get(key).filter(|value| !value.is_null());
        match value.and_then(Value::as_i64) {
            Some(number) if key == "vcpus" && number > MAX_COUNT => problems.push(format!(
                "Runtime constraints [{key}]={number} must be at most {MAX_COUNT}"
            )),
            Some(number) if number > 0 || (!committed && number == 0) => {}
            None if value.is_none() && !committed => {}
            _ => problems.push(format!(
                "Runtime constraints [{key}]={} must be a positive integer",
                value.unwrap_or(&Value::Null)
            )),
        }
        stored.insert(key.into(), value.cloned().unwrap_or(json!(0)));
    }
    for key in caches {
        let value = part(&given, key, json!(0));
        if value.as_i64().is_none_or(|number| number < 0) {
            problems.push(format!(
                "Runtime constraints [{key}]={value} must be a non-negative integer"
            ));
        }
        stored.insert(key.into(), value);
    }
    gpu(&given, &mut stored, &mut problems);
    ApiError::reject_all(problems)?;
    Ok(Value::Object(stored))
}

/// Adds the default size of the Keep cache if the request leaves it open.
pub fn with_defaults(stored: &Value) -> Value {
    let mut filled = stored.clone();
    let number = |key: &str| stored[key].as_i64().unwrap_or(0);
    if number("keep_cache_ram") == 0 && number("keep_cache_disk") == 0 {
        filled["keep_cache_disk"] = json!(number("ram").clamp(2 * GIB, 32 * GIB));
    }
    filled
}

fn gpu(given: &Object, stored: &mut Object, problems: &mut Vec<String>) {
    for key in ["gpu", "cuda"] {
        if !matches!(given.get(key), None | Some(Value::Null | Value::Object(_))) {
            problems.push(format!("Runtime constraints [{key}] must be an object"));
        }
    }
    let object = |key: &str| given.get(key).and_then(Value::as_object).cloned();
    let mut gpu = object("gpu").unwrap_or_default();
    if let Some(mut cuda) = object("cuda") {
        stored.insert("cuda".into(), json!(cuda));
        let count = cuda.remove("device_count");
        // The older CUDA keys are translated, so that dispatchers read only `gpu`.
        if let Some(count) = count.filter(|count| count.as_i64() > Some(0))
            && !gpu.contains_key("device_count")
        {
            let mut text = |key: &str| cuda.remove(key).unwrap_or(json!(""));
            gpu = Object::from_iter([
                ("stack".into(), json!("cuda")),
                ("device_count".into(), count),
                ("driver_version".into(), text("driver_version")),
                (
                    "hardware_target".into(),
                    json!([text("hardware_capability")]),
                ),
            ]);
        }
    }
    let count = part(&gpu, "device_count", json!(0));
    let full = json!({
        "stack": part(&gpu, "stack", json!("")),
        "device_count": count,
        "driver_version": part(&gpu, "driver_version", json!("")),
        "hardware_target": part(&gpu, "hardware_target", json!([])),
        "vram": part(&gpu, "vram", json!(0)),
    });
    match count.as_i64() {
        Some(0) => {}
        Some(devices) if devices > MAX_COUNT => problems.push(format!(
            "Runtime constraints [gpu.device_count]={devices} must be at most {MAX_COUNT}"
        )),
        Some(devices) if devices > 0 => {
            if !matches!(full["stack"].as_str(), Some("cuda" | "rocm")) {
                problems.push(format!(
                    "Runtime constraints [gpu.stack]={} must be \"cuda\" or \"rocm\"",
                    full["stack"]
                ));
            }
            if !full["driver_version"].as_str().is_some_and(is_version) {
                problems.push(format!(
                    "Runtime constraints [gpu.driver_version]={} must be a string in format 'X.Y'",
                    full["driver_version"]
                ));
            }
        }
        _ => problems.push(format!(
            "Runtime constraints [gpu.device_count]={count} must be a non-negative integer"
        )),
    }
    if let Some(key) = gpu.keys().find(|key| full.get(key.as_str()).is_none()) {
        problems.push(format!("Runtime constraints key 'gpu.{key}' is not known"));
    }
    if full["vram"].as_i64().is_none_or(|vram| vram < 0) {
        problems.push("Runtime constraints [gpu.vram] must be a non-negative integer".into());
    }
    stored.insert("gpu".into(), full);
}

fn is_version(text: &str) -> bool {
    text.split_once('.').is_some_and(|(major, minor)| {
        let is_number =
            |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        // As in Arvados, version zero is rejected.
        is_number(major) && is_number(minor) && text.parse::<f64>().is_ok_and(|number| number > 0.0)
    })
}

/// The stored form of scheduling parameters.
pub fn scheduling(given: &Value, command: &Value, accepts_preemptible: bool) -> Result<Value> {
    let given = object("scheduling_parameters", given)?;
    let mut problems = Vec::new();
    let known = ["partitions", "preemptible", "max_run_time", "supervisor"];
    for key in given.keys().filter(|key| !known.contains(&key.as_str())) {
        problems.push(format!("Scheduling parameters key '{key}' is not known"));
    }
    let partitions = part(&given, "partitions", json!([]));
    if !partitions
        .as_array()
        .is_some_and(|names| names.iter().all(Value::is_string))
    {
        problems.push("Scheduling parameters partitions must be an array of strings".into());
    }
    let max_run_time = part(&given, "max_run_time", json!(0));
    if max_run_time.as_i64().is_none_or(|seconds| seconds < 0) {
        problems.push(format!(
            "Scheduling parameters [max_run_time]={max_run_time} must be a non-negative integer"
        ));
    }
    let preemptible = part(&given, "preemptible", json!(false));
    if preemptible == true && !accepts_preemptible {
        problems.push(
            "Scheduling parameters preemptible instances are not configured on this server (dispatch-api --accept-preemptible)".into(),
        );
    }
    let runs_a_workflow = command[0]
        .as_str()
        .is_some_and(|program| program.starts_with("arvados-cwl-runner"));
    let supervisor = part(&given, "supervisor", json!(runs_a_workflow));
    for (key, value) in [("preemptible", &preemptible), ("supervisor", &supervisor)] {
        if !value.is_boolean() {
            problems.push(format!("Scheduling parameters {key} must be true or false"));
        }
    }
    ApiError::reject_all(problems)?;
    Ok(json!({
        "partitions": partitions,
        "preemptible": preemptible,
        "max_run_time": max_run_time,
        "supervisor": supervisor,
    }))
}

/// The value of a key, or the default without one.
fn part(given: &Object, key: &str, default: Value) -> Value {
    let value = given.get(key).filter(|value| !value.is_null());
    value.cloned().unwrap_or(default)
}

fn object(name: &str, given: &Value) -> Result<Object> {
    match given {
        Value::Object(object) => Ok(object.clone()),
        Value::Null => Ok(Object::new()),
        _ => Err(ApiError::invalid(format!("{name} must be an object"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_parts_are_filled_in() {
        let stored = runtime(&json!({"ram": 1000, "vcpus": 1}), true).unwrap();
        assert_eq!(
            stored,
            json!({"API": false, "ram": 1000, "vcpus": 1, "keep_cache_ram": 0, "keep_cache_disk": 0,
                   "gpu": {"stack": "", "device_count": 0, "driver_version": "", "hardware_target": [], "vram": 0}})
        );
        assert_eq!(with_defaults(&stored)["keep_cache_disk"], 2 * GIB);
        let large = runtime(&json!({"ram": 64 * GIB, "vcpus": 1}), true).unwrap();
        assert_eq!(with_defaults(&large)["keep_cache_disk"], 32 * GIB);
        let chosen = runtime(&json!({"ram": 1, "vcpus": 1, "keep_cache_ram": 7}), true).unwrap();
        assert_eq!(with_defaults(&chosen)["keep_cache_disk"], 0);
    }

    #[test]
    fn cuda_is_translated() {
        let cuda =
            json!({"device_count": 2, "driver_version": "11.4", "hardware_capability": "9.0"});
        let stored = runtime(&json!({"ram": 1, "vcpus": 1, "cuda": cuda}), true).unwrap();
        assert_eq!(
            stored["gpu"],
            json!({"stack": "cuda", "device_count": 2, "driver_version": "11.4", "hardware_target": ["9.0"], "vram": 0})
        );
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (given, word) in [
            (json!({"ram": 0, "vcpus": 1}), "ram"),
            (json!({"ram": 1}), "vcpus"),
            (json!({"ram": 1, "vcpus": "two"}), "vcpus"),
            (json!({"ram": 1, "vcpus": MAX_COUNT + 1}), "vcpus"),
            (
                json!({"ram": 1, "vcpus": 1, "gpu": {"stack": "cuda", "device_count": MAX_COUNT + 1, "driver_version": "1.2"}}),
                "device_count",
            ),
            (json!({"ram": 1, "vcpus": 1, "disk": 3}), "disk"),
            (
                json!({"ram": 1, "vcpus": 1, "gpu": {"stack": "cuda", "device_count": 1, "driver_version": "11"}}),
                "driver_version",
            ),
            (
                json!({"ram": 1, "vcpus": 1, "gpu": {"stack": "cuda", "device_count": 1, "driver_version": "0.0"}}),
                "driver_version",
            ),
            (
                json!({"ram": 1, "vcpus": 1, "gpu": {"device_count": 1, "driver_version": "1.2"}}),
                "stack",
            ),
        ] {
            let error = runtime(&given, true).unwrap_err().to_string();
            assert!(error.contains(word), "{given}: {error}");
        }
        assert!(scheduling(&json!({"queue": "x"}), &json!([]), true).is_err());
        let preemptible = json!({"preemptible": true});
        assert!(scheduling(&preemptible, &json!([]), false).is_err());
        let stored = scheduling(&preemptible, &json!([]), true).unwrap();
        assert_eq!(stored["preemptible"], true);
    }

    #[test]
    fn a_workflow_runner_is_a_supervisor() {
        let stored = scheduling(&json!({}), &json!(["arvados-cwl-runner", "x"]), false).unwrap();
        assert_eq!(stored["supervisor"], true);
        assert_eq!(
            scheduling(&json!({}), &json!(["sh"]), false).unwrap()["supervisor"],
            false
        );
    }
}
