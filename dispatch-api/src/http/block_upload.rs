//! `PUT /HASH` of a large block: each piece is hashed and written while the next one arrives.

use std::sync::Arc;

use arvados_client::keep::{BlockHash, MAX_BLOCK_SIZE};
use axum::response::Response;
use md5::{Digest, Md5};

use super::body::UnreadBody;
use super::keep_blocks::{self, BlockPut};
use super::transfer_rate::WaitBudget;
use crate::app::{self, App};
use crate::blocks::incoming::IncomingBlock;
use crate::error::{ApiError, Result};
use crate::limits::{ClientShare, Permits};

/// Size in bytes of a piece. Smaller blocks are received into memory as other requests are.
pub const PIECE_BYTES: usize = 1 << 20;
/// Memory of one upload: a piece that arrives and one that is written, each with room for the next.
const MEMORY_BYTES: u64 = 4 * PIECE_BYTES as u64;
const MAX_BYTES: u64 = MAX_BLOCK_SIZE as u64;

/// A block of which a part has been received.
struct BlockUpload {
    block: IncomingBlock,
    hasher: Md5,
    /// Permits for the memory of its pieces.
    _memory: Permits,
}

impl BlockUpload {
    fn append(&mut self, app: &App, piece: &[u8]) -> Result<()> {
        if self.block.size() + piece.len() as u64 > MAX_BYTES {
            return Err(ApiError::TooLarge { limit: MAX_BYTES });
        }
        self.hasher.update(piece);
        app.blocks.append(&mut self.block, piece)
    }
}

/// Receives and stores a block.
pub async fn put_block(
    app: &Arc<App>,
    share: &ClientShare,
    put: BlockPut,
    mut body: UnreadBody,
) -> Result<Response> {
    let received = receive(app, share, put, &mut body).await;
    if received.is_err() {
        body.discard();
    }
    received
}

async fn receive(
    app: &Arc<App>,
    share: &ClientShare,
    put: BlockPut,
    body: &mut UnreadBody,
) -> Result<Response> {
    if body.announced().is_some_and(|bytes| bytes > MAX_BYTES) {
        return Err(ApiError::TooLarge { limit: MAX_BYTES });
    }
    let memory = app.limits.acquire_memory(share, MEMORY_BYTES).await?;
    let begin = |app: &Arc<App>| {
        put.check(app)?;
        let upload = BlockUpload {
            block: app.blocks.receive()?,
            hasher: Md5::new(),
            _memory: memory,
        };
        Ok((put, upload))
    };
    let (put, mut upload) = app::run_blocking(app, share, begin).await?;
    let mut budget = WaitBudget::new(app.transfer_timeout);
    let mut piece = body.read_piece(PIECE_BYTES, &mut budget).await?;
    while !piece.is_empty() {
        let app = app.clone();
        // Without a request slot, which others could need in between; the memory limits the number.
        let writing = tokio::task::spawn_blocking(move || {
            upload.append(&app, &piece)?;
            Ok::<_, ApiError>(upload)
        });
        let next = body.read_piece(PIECE_BYTES, &mut budget).await;
        upload = writing
            .await
            .map_err(|_| ApiError::BadRecord("the writing of a block panicked".into()))??;
        piece = next?;
    }
    let end = move |app: &Arc<App>| {
        // The token may have been revoked meanwhile.
        let hash = put.check(app)?;
        let BlockUpload { block, hasher, .. } = upload;
        keep_blocks::check_hash(BlockHash::from_digest(hasher), hash)?;
        let size = block.size();
        app.blocks.store(block, hash)?;
        Ok(put.stored(app, hash, size))
    };
    app::run_blocking(app, share, end).await
}
