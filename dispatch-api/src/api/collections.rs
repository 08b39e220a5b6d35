//! `/arvados/v1/collections`.

use arvados_client::manifest::Manifest;
use serde_json::Value;

use super::call::{Call, Reply};
use super::resource;
use super::route::Route;
use crate::auth::Access;
use crate::blocks::sweep::Hold;
use crate::clock;
use crate::collection::content::ManifestContent;
use crate::collection::replace_files::{Replacements, Sources};
use crate::collection::replace_segments::Repacking;
use crate::collection::store;
use crate::container::image::is_pdh;
use crate::db::{rows, trash};
use crate::error::{ApiError, Result};
use crate::limits::MAX_BODY_BYTES;
use crate::record::Record;
use crate::schema::COLLECTIONS;

/// Maximum number of times that the replacements of files are made anew because another request
/// has changed the collection meanwhile.
const MAX_UPDATE_ROUNDS: usize = 10;

pub const ROUTES: &[Route] = &[
    Route::new("GET", "collections", |call, _| {
        let manifests = Manifests::of(call);
        resource::list_finished(call, &COLLECTIONS, |record| manifests.sign(call, record))
    }),
    Route::new("POST", "collections", create),
    Route::new("GET", "collections/{}", |call, name| match is_pdh(name) {
        true => by_pdh(call, name),
        false => show(call, resource::fetch(call, &COLLECTIONS, name)?),
    }),
    Route::new("PUT", "collections/{}", update),
    Route::new("DELETE", "collections/{}", trash),
    Route::new("POST", "collections/{}/trash", trash),
    Route::new("POST", "collections/{}/untrash", untrash),
];

fn trash(call: &Call, uuid: &str) -> Result<Reply> {
    let (caller, uuid) = (call.caller.clone(), uuid.to_owned());
    let trashed = call.write(move |tx| store::trash(tx, &caller, &uuid))?;
    show(call, trashed)
}

fn untrash(call: &Call, uuid: &str) -> Result<Reply> {
    let unique = call.params.flag("ensure_unique_name");
    let (caller, uuid) = (call.caller.clone(), uuid.to_owned());
    let back = call.write(move |tx| store::untrash(tx, &caller, &uuid, unique))?;
    show(call, back)
}

/// What a request changes in the files of a collection, besides a whole manifest.
struct ContentChanges {
    replacements: Option<Replacements>,
    repacking: Option<Repacking>,
}

impl ContentChanges {
    fn of(call: &Call) -> Result<Self> {
        let parameter = |name| call.params.get(name);
        let changes = Self {
            replacements: Replacements::parse(&parameter("replace_files"))?,
            repacking: Repacking::parse(&parameter("replace_segments"))?,
        };
        if let Some(repacking) = &changes.repacking
            && !call.caller.without_attempt_privileges().is_admin
        {
            let new_blocks = repacking.manifest_of_new_blocks();
            let signer = &call.app.config.block_signer;
            signer.check(&new_blocks, &call.caller.presented_token)?;
        }
        Ok(changes)
    }

    fn is_empty(&self) -> bool {
        self.replacements.is_none() && self.repacking.is_none()
    }

    /// Whether the result depends on what the collection contains now.
    fn use_current(&self, given: Option<&ManifestContent>) -> bool {
        match &self.replacements {
            Some(replacements) => replacements.use_current(),
            None => given.is_none(),
        }
    }

    /// The content after these changes: first the files, then the blocks.
    fn apply(
        &self,
        call: &Call,
        given: Option<&ManifestContent>,
        old: Option<&Record>,
        hold: &Hold<'_>,
    ) -> Result<ManifestContent> {
        let content = match (&self.replacements, given, old) {
            (Some(replacements), ..) => replace_files(call, replacements, given, old, hold)?,
            (None, Some(given), _) => given.clone(),
            (None, None, Some(old)) => ManifestContent::of_stored(old),
            (None, None, None) => ManifestContent::parse("")?,
        };
        let Some(repacking) = &self.repacking else {
            return Ok(content);
        };
        // One at a time, as `replace_files`: a parsed manifest may be large.
        let _turn = call.app.file_replacement.lock();
        let manifest = Manifest::parse(&content.text)
            .map_err(|problem| ApiError::BadRecord(problem.to_string()))?;
        let content = ManifestContent::parse(&repacking.apply(&manifest)?.to_string())?;
        refer_to_blocks(call, &content, hold)?;
        Ok(content)
    }
}

fn create(call: &Call, _: &str) -> Result<Reply> {
    let mut attributes = call.params.attributes(&COLLECTIONS)?;
    let changes = ContentChanges::of(call)?;
    // Until the collection is committed.
    let hold = call.app.blocks.hold();
    let given = take_content(call, &mut attributes, &hold)?;
    let content = changes.apply(call, given.as_ref(), None, &hold)?;
    let unique = call.params.flag("ensure_unique_name");
    let caller = call.caller.clone();
    let created = call.write(move |tx| store::create(tx, &caller, &attributes, content, unique))?;
    show(call, created)
}

fn update(call: &Call, uuid: &str) -> Result<Reply> {
    let mut attributes = call.params.attributes(&COLLECTIONS)?;
    let changes = ContentChanges::of(call)?;
    let hold = call.app.blocks.hold();
    let given = take_content(call, &mut attributes, &hold)?;
    if changes.is_empty() {
        let updated = write_update(call, uuid, &attributes, given, None)?;
        return show(call, updated.ok_or(ApiError::Busy)?);
    }
    for _ in 0..MAX_UPDATE_ROUNDS {
        let old = resource::fetch(call, &COLLECTIONS, uuid)?;
        let content = changes.apply(call, given.as_ref(), Some(&old), &hold)?;
        let based_on = changes.use_current(given.as_ref()).then_some(&old);
        if let Some(updated) = write_update(call, uuid, &attributes, Some(content), based_on)? {
            return show(call, updated);
        }
    }
    Err(ApiError::Busy)
}

/// Updates the collection; `None` if it has another content than `based_on` by now.
fn write_update(
    call: &Call,
    uuid: &str,
    attributes: &Record,
    content: Option<ManifestContent>,
    based_on: Option<&Record>,
) -> Result<Option<Record>> {
    let include_trash = call.params.flag("include_trash");
    let unique_name = call.params.flag("ensure_unique_name");
    let based_on = based_on.map(|old| old.text("portable_data_hash").to_owned());
    let (caller, uuid, etag) = (call.caller.clone(), uuid.to_owned(), call.if_match.clone());
    let attributes = attributes.clone();
    call.write(move |tx| {
        if let Some(pdh) = based_on {
            let old = Access::new(tx.conn, &caller).find_brief(&COLLECTIONS, &uuid)?;
            if old.is_some_and(|old| old.text("portable_data_hash") != pdh) {
                return Ok(None);
            }
        }
        let options = store::UpdateOptions {
            include_trash,
            unique_name,
            if_match: etag.as_deref(),
        };
        store::update(tx, &caller, &uuid, &attributes, content, options).map(Some)
    })
}

fn take_content(
    call: &Call,
    attributes: &mut Record,
    hold: &Hold<'_>,
) -> Result<Option<ManifestContent>> {
    let signer = &call.app.config.block_signer;
    let content = ManifestContent::take_from_client(attributes, signer, &call.caller)?;
    if let Some(content) = &content {
        refer_to_blocks(call, content, hold)?;
    }
    Ok(content)
}

/// Keeps the blocks of a content that is about to be stored.
fn refer_to_blocks(call: &Call, content: &ManifestContent, hold: &Hold<'_>) -> Result<()> {
    // Administrators may name blocks that are stored elsewhere, and so may all in Arvados.
    let must_exist =
        !call.app.config.emulate.is_arvados() && !call.caller.without_attempt_privileges().is_admin;
    call.app.blocks.refer_to(&content.text, must_exist, hold)
}

/// The content of a collection after the replacements that the request asks for. It is made before
/// the write, which all others wait for.
fn replace_files(
    call: &Call,
    replacements: &Replacements,
    given: Option<&ManifestContent>,
    old: Option<&Record>,
    hold: &Hold<'_>,
) -> Result<ManifestContent> {
    if given.is_some_and(|given| !given.text.is_empty()) && !replacements.use_given() {
        return Err(ApiError::BadRequest(
            "replace_files: the request has a manifest_text that no source names".into(),
        ));
    }
    // A panic of another request leaves nothing half done.
    let _turn = call.app.file_replacement.lock();
    let mut bytes = 0;
    let mut tree = |text: &str| {
        bytes += text.len() as u64;
        if bytes > MAX_BODY_BYTES {
            return Err(ApiError::invalid(format!(
                "replace_files: the manifests of the sources have more than {MAX_BODY_BYTES} bytes \
                 together; use several requests"
            )));
        }
        let manifest = Manifest::parse(text);
        manifest
            .map(|manifest| manifest.tree())
            .map_err(|problem| ApiError::BadRecord(problem.to_string()))
    };
    let mut sources = Sources::default();
    if let Some(old) = old.filter(|_| replacements.use_current()) {
        sources.current = tree(old.text("manifest_text"))?;
    }
    if let Some(given) = given {
        sources.given = Some(tree(&given.text)?);
    }
    for pdh in replacements.collections() {
        // A token copies only what it may read. That of an attempt reads no collection.
        let path = format!("/arvados/v1/collections/{pdh}");
        if !call.caller.may_request("GET", &path) {
            return Err(ApiError::OutOfScope);
        }
        if !sources.collections.contains_key(pdh) {
            let found = readable_by_pdh(call, pdh, false).map_err(|problem| match problem {
                ApiError::NotFound(_) => ApiError::NotFound(format!(
                    "replace_files: collection {pdh} does not exist, or you may not read it"
                )),
                other => other,
            })?;
            let files = tree(found.text("manifest_text"))?;
            sources.collections.insert(pdh.to_owned(), files);
        }
    }
    let content = ManifestContent::parse(&replacements.apply(&sources)?.to_string())?;
    refer_to_blocks(call, &content, hold)?;
    Ok(content)
}

fn readable_by_pdh(call: &Call, pdh: &str, include_trash: bool) -> Result<Record> {
    let found = call.app.readers.read(|connection| {
        let found = store::find_by_pdh(connection, &call.caller, pdh, include_trash)?;
        found.map_or(Ok(None), |uuid| {
            rows::fetch(connection, &COLLECTIONS, &uuid)
        })
    })?;
    found.ok_or_else(|| ApiError::NotFound("not found".into()))
}

/// A collection by content hash. The caller may not learn which collection has this content, so
/// only few attributes are shown.
fn by_pdh(call: &Call, pdh: &str) -> Result<Reply> {
    let mut found = readable_by_pdh(call, pdh, call.params.flag("include_trash"))?;
    Manifests::of(call).sign(call, &mut found);
    let mut shown = Record::new()
        .with("uuid", pdh)
        .with("properties", Value::Null)
        .with("owner_uuid", "")
        .with("row_version", 1);
    for name in [
        "portable_data_hash",
        "manifest_text",
        "unsigned_manifest_text",
        "file_count",
        "file_size_total",
        "is_trashed",
        "trash_at",
        "delete_at",
    ] {
        shown.copy(name, &found);
    }
    resource::show(call, &COLLECTIONS, shown)
}

fn show(call: &Call, mut record: Record) -> Result<Reply> {
    Manifests::of(call).sign(call, &mut record);
    resource::show(call, &COLLECTIONS, record)
}

/// Whether a project around it is in the trash, which is shown only if that is asked for.
fn is_in_trashed_project(call: &Call, record: &Record, now: &str) -> bool {
    let owner = record.text("owner_uuid");
    let read = |connection: &_| trash::is_owner_in_trash(connection, owner, now);
    call.params.flag("include_trash") && call.app.readers.read(read).unwrap_or(true)
}

/// Which manifests a request asks for.
pub(super) struct Manifests {
    is_signed: bool,
    is_unsigned: bool,
}

impl Manifests {
    /// From the selection, which may be long: once for all records of a list.
    pub(super) fn of(call: &Call) -> Manifests {
        let select = call.params.get("select");
        let is_selected = |name: &str| Some(select.as_array()?.contains(&name.into()));
        Manifests {
            is_signed: is_selected("manifest_text") != Some(false),
            is_unsigned: is_selected("unsigned_manifest_text") == Some(true),
        }
    }

    /// Signs the manifest for the caller's token, and keeps the unsigned one if it is selected.
    /// Manifests of trashed collections stay unsigned. The caller must not hold a connection of the
    /// readers.
    pub(super) fn sign(&self, call: &Call, record: &mut Record) {
        let unsigned = match self.is_unsigned {
            true => record.text("manifest_text").to_owned(),
            false => String::new(),
        };
        record.set("unsigned_manifest_text", unsigned);
        let Some(text) = record.some_text("manifest_text").filter(|_| self.is_signed) else {
            return;
        };
        let now = clock::now();
        if trash::is_trashed(record, &now) || is_in_trashed_project(call, record, &now) {
            return;
        }
        let signer = &call.app.config.block_signer;
        let signed = signer.sign(text, &call.caller.presented_token);
        record.set("manifest_text", signed);
    }
}
