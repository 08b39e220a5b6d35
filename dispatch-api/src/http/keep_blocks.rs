//! The Keep protocol: `PUT /HASH`, `GET` and `HEAD /LOCATOR`. `block_upload.rs` has the `PUT` of
//! large blocks.

use arvados_client::keep::{BlockHash, Locator};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Method};
use tokio_util::io::ReaderStream;

use crate::api::params::{self, Params};
use crate::app::App;
use crate::auth::scope;
use crate::blocks::STORAGE_CLASS;
use crate::blocks::signature;
use crate::error::{ApiError, Result};

const STREAM_CHUNK_BYTES: usize = 128 << 10;

/// What the head of a request says about the block that it stores.
pub struct BlockPut {
    name: String,
    token: String,
    classes: String,
}

impl BlockPut {
    pub fn of(name: &str, headers: &HeaderMap) -> Self {
        let classes = headers.get("x-keep-storage-classes");
        BlockPut {
            name: name.to_owned(),
            token: params::token(headers, &Params::default()).unwrap_or_default(),
            classes: classes
                .and_then(|names| names.to_str().ok())
                .unwrap_or("")
                .to_owned(),
        }
    }

    /// The hash of the block, if the caller may store it.
    pub fn check(&self, app: &App) -> Result<BlockHash> {
        let hash = BlockHash::parse(self.name.split('+').next().unwrap_or_default())
            .map_err(|problem| ApiError::BadRequest(problem.to_string()))?;
        let emulate = app.config.emulate;
        if !emulate.is_arvados()
            && !scope::may_save_collections(&app.authenticate(&self.token)?.scopes)
        {
            return Err(ApiError::OutOfScope);
        }
        emulate.check_block_classes(&self.classes)?;
        Ok(hash)
    }

    /// The response with the locator, signed for the caller's token.
    pub fn stored(&self, app: &App, hash: BlockHash, size: u64) -> Response {
        let locator = Locator::new(hash, size);
        let locator = app.config.block_signer.sign_locator(&locator, &self.token);
        http::Response::builder()
            .header("x-keep-replicas-stored", "1")
            .header(
                "x-keep-storage-classes-confirmed",
                format!("{STORAGE_CLASS}=1"),
            )
            .header("content-type", "text/plain")
            .body(Body::from(format!("{locator}\n")))
            .unwrap_or_default()
    }
}

/// Rejects content with another hash.
pub fn check_hash(found: BlockHash, named: BlockHash) -> Result<()> {
    match found == named {
        true => Ok(()),
        false => Err(ApiError::BadRequest(format!(
            "checksum mismatch: the data has hash {found}, not {named}"
        ))),
    }
}

/// Stores a block whose content is in memory.
pub fn put_block(app: &App, put: &BlockPut, data: &Bytes) -> Result<Response> {
    let hash = put.check(app)?;
    check_hash(BlockHash::of(data), hash)?;
    app.blocks.put(hash, data)?;
    Ok(put.stored(app, hash, data.len() as u64))
}

/// The response with a block that the caller may read, streamed from disk; without it for HEAD.
pub fn get_block(app: &App, method: &Method, name: &str, token: &str) -> Result<Response> {
    let locator =
        Locator::parse(name).map_err(|problem| ApiError::BadRequest(problem.to_string()))?;
    // Signatures outlive tokens and rights, so the token is checked too.
    if !app.config.emulate.is_arvados()
        && !scope::may_use_collections(&app.authenticate(token)?.scopes)
    {
        return Err(ApiError::OutOfScope);
    }
    let signer = &app.config.block_signer;
    if !signer.is_valid(&locator, token, signature::unix_time()) {
        return Err(ApiError::BadRequest("invalid signature".into()));
    }
    let (body, size) = match *method {
        Method::HEAD => (Body::empty(), app.blocks.size(locator.hash)?),
        _ => match app.blocks.open_checked(locator.hash)? {
            Some((file, size)) => (stream(file), Some(size)),
            None => (Body::empty(), None),
        },
    };
    let size = size.ok_or_else(|| ApiError::NotFound("Not Found".into()))?;
    if size != locator.size {
        return Err(ApiError::BadRequest(format!(
            "size mismatch: block {} has {size} bytes, not {}",
            locator.hash, locator.size
        )));
    }
    let response = http::Response::builder()
        .header("content-type", "application/octet-stream")
        .header("content-length", size)
        .body(body);
    Ok(response.unwrap_or_default())
}

fn stream(file: std::fs::File) -> Body {
    let file = tokio::fs::File::from_std(file);
    Body::from_stream(ReaderStream::with_capacity(file, STREAM_CHUNK_BYTES))
}
