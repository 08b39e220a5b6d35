//! `/arvados/v1/workflows`: definitions in CWL, registered by `arvados-cwl-runner
//! --create-workflow` and copied by `arv-copy`.

use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::call::{Call, Reply};
use super::resource::{change, get, list, write};
use super::route::Route;
use crate::auth::Access;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::record::patch;
use crate::schema::WORKFLOWS;

pub const ROUTES: &[Route] = &[
    Route::new("GET", "workflows", |call, _| list(call, &WORKFLOWS)),
    Route::new("POST", "workflows", create),
    Route::new("GET", "workflows/{}", |call, uuid| {
        get(call, &WORKFLOWS, uuid)
    }),
    Route::new("PUT", "workflows/{}", update),
    Route::new("DELETE", "workflows/{}", delete),
];

fn create(call: &Call, _: &str) -> Result<Reply> {
    let attributes = call.params.attributes(&WORKFLOWS)?;
    let mut workflow = patch::create(&WORKFLOWS, &attributes, call.caller.is_admin)?;
    names_in(&attributes)?.fill(&mut workflow);
    write(call, &WORKFLOWS, move |tx, caller| {
        Access::new(tx.conn, caller).set_owner(&mut workflow)?;
        tx.create(&WORKFLOWS, caller, workflow)
    })
}

fn update(call: &Call, uuid: &str) -> Result<Reply> {
    let attributes = call.params.attributes(&WORKFLOWS)?;
    // Not on the thread that makes all changes, one after the other.
    let names = names_in(&attributes)?;
    change(call, &WORKFLOWS, uuid, move |tx, caller, old| {
        Access::new(tx.conn, caller).require_writable(&old)?;
        let mut new = patch::apply(&WORKFLOWS, &old, &attributes, &[])?;
        Access::new(tx.conn, caller).require_owners(&old, &new)?;
        names.fill(&mut new);
        tx.update(&WORKFLOWS, caller, &old, new)
    })
}

fn delete(call: &Call, uuid: &str) -> Result<Reply> {
    change(call, &WORKFLOWS, uuid, |tx, caller, old| {
        Access::new(tx.conn, caller).require_writable(&old)?;
        tx.delete(&WORKFLOWS, caller, &old)?;
        Ok(old)
    })
}

/// Maximum size of a definition in YAML that is read. A reader of YAML needs a hundred times the
/// memory.
const MAX_YAML_BYTES: usize = 1 << 20;

/// What a definition says of itself.
#[derive(Debug, Default, Deserialize)]
struct Names {
    name: Option<String>,
    description: Option<String>,
}

impl Names {
    /// Gives the record those that it lacks.
    fn fill(self, record: &mut Record) {
        for (attribute, text) in [("name", self.name), ("description", self.description)] {
            if let Some(text) = text
                && record.some_text(attribute).is_none()
            {
                record.set(attribute, text);
            }
        }
    }
}

/// The names in the definition that a client sent, if it sent one.
fn names_in(attributes: &Record) -> Result<Names> {
    match attributes.some_text("definition") {
        Some(definition) => names_of(definition),
        None => Ok(Names::default()),
    }
}

fn names_of(definition: &str) -> Result<Names> {
    if serde_json::from_str::<IgnoredAny>(definition).is_ok() {
        return Ok(serde_json::from_str(definition).unwrap_or_default());
    }
    if definition.len() > MAX_YAML_BYTES {
        return Err(ApiError::invalid(format!(
            "Definition in YAML has {} bytes, and {MAX_YAML_BYTES} are read; give it as JSON",
            definition.len()
        )));
    }
    // One at a time, so that the memory is taken once.
    static READING: Mutex<()> = Mutex::new(());
    let _reading = READING.lock();
    match serde_norway::from_str::<IgnoredAny>(definition) {
        Ok(_) => Ok(serde_norway::from_str(definition).unwrap_or_default()),
        Err(error) => Err(ApiError::invalid(format!(
            "Definition is not valid yaml: {error}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_names_what_has_no_name() {
        let of = |name: Option<&str>, definition: &str| {
            let mut record = Record::new();
            if let Some(name) = name {
                record.set("name", name);
            }
            let attributes = Record::new().with("definition", definition);
            names_in(&attributes).map(|names| {
                names.fill(&mut record);
                record
            })
        };
        for (name, definition, expected) in [
            (None, "cwlVersion: v1.2\nname: sort\n", Some("sort")),
            (None, "{\"name\": \"sort\"}", Some("sort")),
            (Some("mine"), "name: sort", Some("mine")),
            (None, "name: [1, 2]", None),
            (None, "- a list", None),
            (None, "[\"a list\"]", None),
            (None, "", None),
        ] {
            let record = of(name, definition).unwrap();
            assert_eq!(record.some_text("name"), expected, "{definition}");
        }
        for bad in ["{", "a: b: c", "\"unfinished"] {
            let error = of(None, bad).unwrap_err().to_string();
            assert!(error.contains("is not valid yaml"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_large_definition_costs_little_memory() {
        let large = "x".repeat(MAX_YAML_BYTES);
        let json = format!("{{\"name\": \"a\", \"x\": \"{large}\"}}");
        assert_eq!(names_of(&json).unwrap().name.as_deref(), Some("a"));
        let error = names_of(&format!("name: a\nx: {large}")).unwrap_err();
        assert!(error.to_string().contains("give it as JSON"), "{error}");
        // Each alias stands for ten of the one before.
        let mut bomb = "a0: &a0 x\n".to_owned();
        for n in 1..12 {
            let ten = format!("*a{}, ", n - 1).repeat(10);
            bomb += &format!("a{n}: &a{n} [{ten}]\n");
        }
        names_of(&bomb).unwrap();
        names_of(&"[".repeat(100_000)).unwrap_err();
    }
}
