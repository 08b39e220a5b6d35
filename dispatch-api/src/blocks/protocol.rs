//! The Keep protocol: `PUT /HASH`, `GET` and `HEAD /LOCATOR`.

use arvados_client::keep::{BlockHash, Locator, MAX_BLOCK_SIZE};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{Method, StatusCode};
use tokio_util::io::ReaderStream;

use crate::app::App;
use crate::auth::{self, scope};
use crate::blocks::STORAGE_CLASS;
use crate::collection::content::{SIGNATURE_TTL, now_unix};
use crate::error::{ApiError, Result};

const PIECE: usize = 128 << 10;

/// Store a block and answer with its locator, signed for the caller's token.
pub fn put(app: &App, name: &str, token: &str, classes: &str, data: &Bytes) -> Result<Response> {
    let hash = BlockHash::parse(name.split('+').next().unwrap_or_default())
        .map_err(|problem| ApiError::BadRequest(problem.to_string()))?;
    if data.len() > MAX_BLOCK_SIZE {
        return Err(ApiError::TooLarge {
            limit: MAX_BLOCK_SIZE as u64,
        });
    }
    let rules = app.setting.rules;
    if rules.block_put_needs_token && !scope::may_save(&app.authenticate(token)?.scopes) {
        return Err(ApiError::OutOfScope);
    }
    rules.check_block_classes(classes)?;
    let found = BlockHash::of(data);
    if found != hash {
        return Err(ApiError::BadRequest(format!(
            "checksum mismatch: the data has hash {found}, not {hash}"
        )));
    }
    app.blocks.put(hash, data)?;
    let locator = Locator::new(hash, data.len() as u64).sign(
        app.setting.blob_signing_key.as_bytes(),
        token,
        now_unix() + SIGNATURE_TTL,
        SIGNATURE_TTL,
    );
    Ok(reply(StatusCode::OK)
        .header("x-keep-replicas-stored", "1")
        .header(
            "x-keep-storage-classes-confirmed",
            format!("{STORAGE_CLASS}=1"),
        )
        .header("content-type", "text/plain")
        .body(Body::from(format!("{locator}\n")))
        .unwrap_or_default())
}

/// A block found and allowed to be read; `None` as file for HEAD.
pub struct Readable {
    size: u64,
    file: Option<std::fs::File>,
}

pub fn find(app: &App, method: &Method, name: &str, token: &str) -> Result<Readable> {
    let missing = || ApiError::NotFound("Not Found".into());
    let locator =
        Locator::parse(name).map_err(|problem| ApiError::BadRequest(problem.to_string()))?;
    // A signature outlives the attempt it was made for.
    if auth::is_signed(token) {
        app.authenticate(token)?;
    }
    let key = app.setting.blob_signing_key.as_bytes();
    locator
        .verify(key, token, now_unix(), SIGNATURE_TTL)
        .map_err(|_| ApiError::BadRequest("invalid signature".into()))?;
    if *method == Method::HEAD {
        let size = app.blocks.size(locator.hash)?.ok_or_else(missing)?;
        return Ok(Readable { size, file: None });
    }
    let (file, size) = app.blocks.open_checked(locator.hash)?.ok_or_else(missing)?;
    Ok(Readable {
        size,
        file: Some(file),
    })
}

/// The block as it streams from disk.
pub fn stream(found: Readable) -> Response {
    let body = match found.file {
        None => Body::empty(),
        Some(file) => {
            let pieces = ReaderStream::with_capacity(tokio::fs::File::from_std(file), PIECE);
            Body::from_stream(pieces)
        }
    };
    reply(StatusCode::OK)
        .header("content-type", "application/octet-stream")
        .header("content-length", found.size)
        .body(body)
        .unwrap_or_default()
}

fn reply(status: StatusCode) -> http::response::Builder {
    http::Response::builder().status(status)
}
