//! Parameters of a request, from its query, form or JSON body.

use std::collections::BTreeMap;

use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use serde_json::{Map, Value, json};
use url::form_urlencoded;

use crate::error::{ApiError, Result};
use crate::json_text;
use crate::record::Record;
use crate::schema::{AttrType, Resource};

/// Parameters whose text is JSON when sent in a query or a form.
const JSON_PARAMETERS: [&str; 11] = [
    "filters",
    "order",
    "select",
    "where",
    "distinct",
    "limit",
    "offset",
    "include_trash",
    "ensure_unique_name",
    "replace_files",
    "include",
];

/// Other parameters that are never attributes of a record.
const OTHER_PARAMETERS: [&str; 10] = [
    "count",
    "include_old_versions",
    "replace_segments",
    "api_token",
    "_method",
    "reader_tokens",
    "cluster_id",
    "alt",
    "format",
    "uuid",
];

fn is_parameter(name: &str) -> bool {
    JSON_PARAMETERS.contains(&name) || OTHER_PARAMETERS.contains(&name)
}

#[derive(Debug, Default)]
pub struct Params {
    query: Map<String, Value>,
    body: Map<String, Value>,
    /// The objects in the body that are no parameters: attributes of records, which share them.
    records: BTreeMap<String, Record>,
    /// The items of a bulk request; `None` for one that is no object.
    items: Option<Vec<Option<Record>>>,
    form: bool,
}

impl Params {
    pub fn parse(query: Option<&str>, headers: &HeaderMap, body: &[u8]) -> Result<Params> {
        let mut params = Params {
            query: parse_form(query.unwrap_or("").as_bytes()),
            ..Params::default()
        };
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(params);
        }
        if is_form(headers) {
            params.body = parse_form(body);
            params.form = true;
            return Ok(params);
        }
        if content_type(headers).starts_with("multipart/") {
            return Err(ApiError::BadRequest(
                "multipart bodies are not supported; send JSON or a URL-encoded form".into(),
            ));
        }
        let parsed = json_text::parse(body)?.map_err(|problem| {
            ApiError::invalid(format!("the body is not valid JSON: {problem}"))
        })?;
        let Value::Object(body) = parsed else {
            return Err(ApiError::invalid("the body must be a JSON object"));
        };
        for (name, value) in body {
            match value {
                Value::Object(members) if !is_parameter(&name) => {
                    params.records.insert(name, members.into_iter().collect());
                }
                Value::Array(items) if name == "items" => {
                    params.items = Some(items.into_iter().map(into_record).collect());
                }
                value => _ = params.body.insert(name, value),
            }
        }
        Ok(params)
    }

    /// The items of a bulk request; `None` for one that is no object.
    pub fn items(&self) -> Option<&[Option<Record>]> {
        self.items.as_deref()
    }

    fn given(&self, name: &str) -> Option<&Value> {
        self.body.get(name).or_else(|| self.query.get(name))
    }

    /// A parameter from the body or the query, as a JSON value.
    pub fn get(&self, name: &str) -> Value {
        match self.given(name) {
            Some(Value::String(text)) if JSON_PARAMETERS.contains(&name) => {
                if text.is_empty() {
                    return Value::Null;
                }
                // Plain words, such as an order by one column, are not valid JSON and stay text.
                parse_text(text).unwrap_or_else(|| json!(text))
            }
            Some(value) => value.clone(),
            None => Value::Null,
        }
    }

    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name).as_str().map(str::to_owned)
    }

    pub fn flag(&self, name: &str) -> bool {
        match self.get(name) {
            Value::Bool(flag) => flag,
            Value::String(text) => matches!(text.as_str(), "true" | "1"),
            Value::Number(number) => number.as_i64() == Some(1),
            _ => false,
        }
    }

    /// The attributes of the record to create or change.
    pub fn attributes(&self, resource: &Resource) -> Result<Record> {
        let record = self.records.get(resource.singular);
        let wrapped = self.given(resource.singular);
        let mut attributes = match wrapped {
            _ if record.is_some() => record.cloned().unwrap_or_default(),
            Some(Value::String(text)) => match json_text::parse(text.as_bytes())? {
                Ok(Value::Object(attributes)) => attributes.into_iter().collect(),
                _ => {
                    return Err(ApiError::BadRequest(format!(
                        "the value of {} is not a JSON object",
                        resource.singular
                    )));
                }
            },
            Some(Value::Null) => Record::new(),
            Some(_) => {
                return Err(ApiError::invalid(format!(
                    "{} must be an object",
                    resource.singular
                )));
            }
            None if self.form => self.form_attributes(resource),
            None => {
                let plain = self.body.iter().filter(|(name, _)| !is_parameter(name));
                let plain = plain.map(|(name, value)| (name.clone(), value.clone()));
                let objects = self.records.iter().map(|(name, members)| {
                    (name.clone(), Value::Object(members.clone().into_object()))
                });
                plain.chain(objects).collect()
            }
        };
        // A client may send a record back as it got it, as in Arvados: arv-copy does.
        let is_whole = ["etag", "kind"]
            .iter()
            .any(|name| attributes.0.contains_key(*name));
        let is_wrapped = record.is_some() || wrapped.is_some();
        if self.form || !is_wrapped || is_whole {
            attributes.0.remove("etag");
            attributes.0.remove("kind");
            for attr in resource.computed {
                attributes.0.remove(attr.name);
            }
        }
        Ok(attributes)
    }

    /// Attributes sent as form fields. Text of array and object attributes is parsed as JSON.
    fn form_attributes(&self, resource: &Resource) -> Record {
        self.body
            .iter()
            .filter_map(|(name, value)| {
                // `name=x`, or `collection[name]=x`, as Rails has it.
                let wrapped = name.strip_prefix(resource.singular);
                let wrapped = wrapped.and_then(|rest| rest.strip_prefix('[')?.strip_suffix(']'));
                let name = wrapped.unwrap_or(name);
                let attr = resource.attr(name)?;
                let text = value.as_str().unwrap_or("");
                let value = match attr.kind {
                    AttrType::Object | AttrType::Array => parse_text(text),
                    _ => None,
                }
                .unwrap_or_else(|| value.clone());
                Some((name.to_owned(), value))
            })
            .collect()
    }
}

fn into_record(value: Value) -> Option<Record> {
    match value {
        Value::Object(members) => Some(members.into_iter().collect()),
        _ => None,
    }
}

fn parse_text(text: &str) -> Option<Value> {
    json_text::parse(text.as_bytes()).ok()?.ok()
}

fn content_type(headers: &HeaderMap) -> &str {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("")
}

pub fn is_form(headers: &HeaderMap) -> bool {
    content_type(headers).starts_with("application/x-www-form-urlencoded")
}

/// The `api_token` in the beginning of a form. Clients that send long queries as a form put it
/// there.
pub fn form_token(beginning: &[u8], is_whole: bool) -> Option<String> {
    let complete = match is_whole {
        true => beginning,
        false => &beginning[..beginning.iter().rposition(|byte| *byte == b'&')?],
    };
    form_urlencoded::parse(complete)
        .find(|(name, _)| name == "api_token")
        .map(|(_, token)| token.into_owned())
}

fn parse_form(encoded: &[u8]) -> Map<String, Value> {
    form_urlencoded::parse(encoded)
        .map(|(name, value)| (name.into_owned(), json!(value)))
        .collect()
}

/// The token of a request: `Authorization: Bearer` or `OAuth2`, else the `api_token` parameter.
pub fn token(headers: &HeaderMap, params: &Params) -> Option<String> {
    let header = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| {
            scheme.eq_ignore_ascii_case("bearer") || scheme.eq_ignore_ascii_case("oauth2")
        })
        .map(|(_, token)| token.trim().to_owned());
    header.or_else(|| params.text("api_token"))
}

/// The `Host` header, else `default`.
pub fn client_facing_host(headers: &HeaderMap, default: &str) -> String {
    let named = headers.get(HOST);
    let named = named.and_then(|host| host.to_str().ok());
    named.unwrap_or(default).to_owned()
}

/// Decodes a path once: clients write the `+` of a portable data hash as `%2B`.
pub fn decode_path(path: &str) -> Result<String> {
    percent_encoding::percent_decode_str(path)
        .decode_utf8()
        .map(|path| path.into_owned())
        .map_err(|_| ApiError::path_not_found())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::CONTAINERS;

    fn parse(kind: &str, query: &str, body: &str) -> Result<Params> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        Params::parse(Some(query), &headers, body.as_bytes())
    }

    const FORM: &str = "application/x-www-form-urlencoded";
    const JSON: &str = "application/json";

    #[test]
    fn attributes_come_wrapped_or_not_as_json_or_form() {
        let expected = json!({"state": "Running", "progress": 0.5});
        for (kind, body) in [
            (
                JSON,
                r#"{"container":{"state":"Running","progress":0.5},"select":["uuid"]}"#,
            ),
            (
                JSON,
                r#"{"state":"Running","progress":0.5,"select":["uuid"]}"#,
            ),
            (
                FORM,
                "container=%7B%22state%22%3A%22Running%22%2C%22progress%22%3A0.5%7D&select=%5B%22uuid%22%5D",
            ),
            (
                FORM,
                "container=%7B%22etag%22%3A%22x%22%2C%22state%22%3A%22Running%22%2C%22progress%22%3A0.5%7D&select=%5B%22uuid%22%5D",
            ),
        ] {
            let params = parse(kind, "alt=json", body).unwrap();
            let attributes = params.attributes(&CONTAINERS).unwrap();
            assert_eq!(Value::Object(attributes.into_object()), expected, "{body}");
            assert_eq!(params.get("select"), json!(["uuid"]));
        }
    }

    #[test]
    fn a_form_has_attributes_with_and_without_the_name_of_the_record() {
        let params = parse(
            FORM,
            "",
            "container%5Bstate%5D=Running&exit_code=1&user[x]=2",
        )
        .unwrap();
        let attributes = params.attributes(&CONTAINERS).unwrap();
        let expected = json!({"state": "Running", "exit_code": "1"});
        assert_eq!(Value::Object(attributes.into_object()), expected);
    }

    #[test]
    fn query_values_are_json_where_json_is_meant() {
        let params = parse(JSON, "filters=%5B%5B%22uuid%22%2C%22%3D%22%2C%22x%22%5D%5D&order=priority+desc&limit=5&count=none", "").unwrap();
        assert_eq!(params.get("filters"), json!([["uuid", "=", "x"]]));
        assert_eq!(params.get("order"), "priority desc");
        assert_eq!(params.get("limit"), 5);
        assert_eq!(params.get("count"), "none");
    }

    #[test]
    fn broken_bodies_are_refused() {
        assert_eq!(parse(JSON, "", "{").unwrap_err().status().as_u16(), 422);
        let params = parse(FORM, "", "container=%7B").unwrap();
        assert_eq!(
            params
                .attributes(&CONTAINERS)
                .unwrap_err()
                .status()
                .as_u16(),
            400
        );
    }

    #[test]
    fn a_token_is_found_in_the_beginning_of_a_form() {
        let token = |text: &str, is_whole| form_token(text.as_bytes(), is_whole);
        assert_eq!(token("a=1&api_token=v2%2Fx", true).unwrap(), "v2/x");
        assert_eq!(token("a=1&api_token=v2%2Fx&b=", false).unwrap(), "v2/x");
        assert_eq!(token("a=1&api_token=v2%2Fx", false), None);
        assert_eq!(token("a=1", true), None);
    }

    #[test]
    fn paths_are_decoded_once() {
        assert_eq!(decode_path("/c/x%2B12").unwrap(), "/c/x+12");
        assert_eq!(decode_path("/c/x+12").unwrap(), "/c/x+12");
        assert!(decode_path("/%ff").is_err());
    }
}
