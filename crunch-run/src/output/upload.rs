//! Uploads the files of an output plan and adds the parts of collections. In: an [`OutputPlan`].
//! Out: the manifest.

use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use arvados_client::keep::{BlockStore, CollectionWriter, FilePart, MAX_BLOCK_SIZE};
use arvados_client::manifest::{Entry, Manifest, ManifestBuilder};
use bytes::Bytes;
use tokio::sync::mpsc;

use super::error::OutputError;
use super::host_fs;
use super::left_out_report::{BadEntries, LeftOutReport};
use super::scan::{LocalFile, OutputPlan};
use crate::inputs::Progress;

/// Maximum size of one read from a file.
const READ_SIZE: usize = 256 << 10;
/// Maximum number of reads that wait to be stored.
const MAX_QUEUED_READS: usize = 8;
/// Minimum size of a large file's last part that gets a block of its own.
const MIN_OWN_BLOCK: u64 = 16 << 20;

/// Message of the reading thread.
enum Piece {
    Begin(usize),
    Data(Bytes),
    /// A block of a large file. It is read when it is sent, so it is not held in memory.
    Block(FilePart),
}

/// Uploads the files and returns the manifest of the whole output, and the files that could not be
/// read.
pub async fn upload<S: BlockStore + Clone + 'static>(
    mut plan: OutputPlan,
    keep: S,
    bad_entries: BadEntries,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<(Manifest, LeftOutReport), OutputError> {
    let files = plan.files.iter().enumerate();
    let files = files.filter(|(index, _)| !plan.skipped.contains(index));
    let total = files.map(|(_, file)| file.size).sum();
    let mut done = 0;
    if total > 0 {
        progress(Progress { done, total });
    }
    let mut writer = CollectionWriter::new(keep);
    for dir in &plan.empty {
        writer.add_dir_placeholder(dir)?;
    }
    let files = Arc::new(std::mem::take(&mut plan.files));
    let skipped = std::mem::take(&mut plan.skipped);
    let (sender, mut pieces) = mpsc::channel(MAX_QUEUED_READS);
    let to_read = files.clone();
    let reader = tokio::task::spawn_blocking(move || {
        let files = to_read.iter().enumerate();
        let files = files.filter(|(index, _)| !skipped.contains(index));
        read_all(files, &sender, bad_entries)
    });
    while let Some(piece) = pieces.recv().await {
        match piece {
            Piece::Begin(index) => writer.start_file(&files[index].path.to_string())?,
            Piece::Data(data) => {
                writer.write(&data).await?;
                done += data.len() as u64;
                progress(Progress { done, total });
            }
            Piece::Block(part) => {
                let size = part.len() as u64;
                writer.write_part(part).await?;
                done += size;
                progress(Progress { done, total });
            }
        }
    }
    let mut left_out = reader.await.map_err(|_| OutputError::Interrupted)??;
    writer.finish_file();
    let stored = writer.finish().await?;
    let manifest = assemble(&plan, &files, &stored, &mut left_out)?;
    Ok((manifest, left_out))
}

/// Reads the files one after the other, and returns those that it may not open. Ends early if the
/// receiver is gone.
fn read_all<'a>(
    files: impl Iterator<Item = (usize, &'a LocalFile)>,
    sender: &mpsc::Sender<Piece>,
    bad_entries: BadEntries,
) -> Result<LeftOutReport, OutputError> {
    let mut left_out = LeftOutReport::default();
    let mut buffer = vec![0; READ_SIZE];
    for (index, file) in files {
        let failed = |source| OutputError::Read {
            path: file.path.to_string(),
            source,
        };
        let path = file.path.to_string();
        tracing::debug!("copying {path:?} ({} bytes)", file.size);
        let on_node = file.host.relative.to_string();
        let mut input = match host_fs::open_below(&file.host.root, &on_node) {
            Ok(input) => input,
            Err(error) => {
                left_out.add_or_refuse(bad_entries, failed(error))?;
                continue;
            }
        };
        if sender.blocking_send(Piece::Begin(index)).is_err() {
            return Ok(left_out);
        }
        let own = blocks(input.metadata().map_err(failed)?.len());
        if !own.is_empty() {
            let (large, path) = (Arc::new(input), Arc::from(path));
            let mut at = 0;
            for len in own {
                let part = FilePart::new(Arc::clone(&large), Arc::clone(&path), at, len as usize);
                if sender.blocking_send(Piece::Block(part)).is_err() {
                    return Ok(left_out);
                }
                at += len;
            }
            input = large.try_clone().map_err(failed)?;
            input.seek(SeekFrom::Start(at)).map_err(failed)?;
        }
        loop {
            let count = input.read(&mut buffer).map_err(failed)?;
            if count == 0 {
                break;
            }
            let data = Bytes::copy_from_slice(&buffer[..count]);
            if sender.blocking_send(Piece::Data(data)).is_err() {
                return Ok(left_out);
            }
        }
    }
    Ok(left_out)
}

/// Sizes of the blocks that a file of this size has to itself, from its start: full blocks, and a
/// last one if it is large. The rest shares a block with other files.
fn blocks(size: u64) -> Vec<u64> {
    let full = MAX_BLOCK_SIZE as u64;
    let (count, rest) = (size / full, size % full);
    let mut blocks = vec![full; count as usize];
    if count > 0 && rest >= MIN_OWN_BLOCK {
        blocks.push(rest);
    }
    blocks
}

fn assemble(
    plan: &OutputPlan,
    files: &[LocalFile],
    stored: &Manifest,
    left_out: &mut LeftOutReport,
) -> Result<Manifest, OutputError> {
    let tree = stored.tree();
    let mut output = ManifestBuilder::new();
    output.add_tree(".", &tree)?;
    for (path, index) in &plan.aliases {
        match tree.lookup(&files[*index].path.to_string()) {
            Some(Entry::File(extents)) => {
                output.add_file(&path.to_string(), extents.iter().cloned())?;
            }
            // The file was left out.
            _ => left_out.add(|| {
                let path = path.to_string();
                OutputError::OtherName { path }.to_string()
            }),
        }
    }
    for collection_parts in &plan.collection_parts {
        match collection_parts.tree.lookup(&collection_parts.inner) {
            Some(Entry::File(extents)) => {
                output.add_file(&collection_parts.path, extents.iter().cloned())?;
            }
            Some(Entry::Directory) => {
                let part = collection_parts.tree.subtree(&collection_parts.inner)?;
                output.add_tree(&collection_parts.path, &part)?;
            }
            None => {}
        }
    }
    for dir in &plan.directories {
        output.add_directory(dir)?;
    }
    Ok(output.build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_files_have_blocks_of_their_own() {
        const MIB: u64 = 1 << 20;
        let cases: [(u64, &[u64]); 6] = [
            (0, &[]),
            (64 * MIB - 1, &[]),
            (64 * MIB, &[64 * MIB]),
            (80 * MIB - 1, &[64 * MIB]),
            (80 * MIB, &[64 * MIB, 16 * MIB]),
            (129 * MIB, &[64 * MIB, 64 * MIB]),
        ];
        for (size, expected) in cases {
            assert_eq!(blocks(size), expected, "{size}");
        }
    }
}
