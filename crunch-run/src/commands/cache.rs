//! `crunch-run cache ls|gc|verify`: lists the node cache, collects its garbage, verifies its
//! blocks.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use arvados_client::keep::BlockHash;
use bytesize::ByteSize;
use clap::{Parser, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use crate::flags::{CacheDir, CacheLimits};
use node_cache::entries::{self, Entry, Kind};
use node_cache::{collect, remove};

/// The node cache: blocks of collections and unpacked images
#[derive(Debug, Parser)]
#[command(name = "crunch-run cache", version)]
pub struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the entries of the cache and their sizes
    Ls {
        #[command(flatten)]
        dir: CacheDir,
        /// Print JSON instead of text: one object per line
        #[arg(long)]
        json: bool,
    },
    /// Remove leftovers, then the least recently used entries beyond the limits
    Gc {
        #[command(flatten)]
        dir: CacheDir,
        #[command(flatten)]
        limits: CacheLimits,
    },
    /// Verify every block against its hash and remove damaged ones; exits with 1 if there are any
    Verify {
        #[command(flatten)]
        dir: CacheDir,
    },
}

/// Runs the subcommand. Damaged blocks have an exit status of their own.
pub fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    match &flags.command {
        Command::Ls { dir, json } => list(&dir.path(), *json, &mut out)?,
        Command::Gc { dir, limits } => {
            let stats = collect(&dir.path(), limits.limits())?;
            let (freed, size) = (ByteSize(stats.freed), ByteSize(stats.size));
            writeln!(
                out,
                "{} entries removed, {freed} freed, {size} left",
                stats.removed
            )?;
            if stats.in_use > 0 {
                writeln!(out, "{} more would have gone, but are in use", stats.in_use)?;
            }
        }
        Command::Verify { dir } => return verify(&dir.path(), &mut out),
    }
    Ok(ExitCode::SUCCESS)
}

fn list(cache: &Path, as_json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let mut entries = entries::all(cache)?;
    entries.sort_by_key(|entry| entry.used);
    let used = |entry: &Entry| Timestamp::try_from(entry.used).unwrap_or_default();
    for entry in &entries {
        let in_use = entry.kind == Kind::Layer && entry.try_lock()?.is_none();
        if as_json {
            let line = json!({
                "kind": entry.kind, "name": entry.name, "bytes": entry.size,
                "used": used(entry), "in_use": in_use,
            });
            writeln!(out, "{line}")?;
        } else {
            let kind = match entry.kind {
                Kind::Block => "block",
                Kind::Layer => "layer",
                Kind::LeftOver => "left over",
            };
            let mark = if in_use { "  in use" } else { "" };
            let when = used(entry).strftime("%Y-%m-%d %H:%M");
            let size = ByteSize(entry.size).to_string();
            writeln!(out, "{kind:<9}  {size:>10}  {when}  {}{mark}", entry.name)?;
        }
    }
    if !as_json {
        let size: u64 = entries.iter().map(|entry| entry.size).sum();
        let count = entries.len();
        writeln!(
            out,
            "{count} entries, {} in {}",
            ByteSize(size),
            cache.display()
        )?;
    }
    Ok(())
}

fn verify(cache: &Path, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let (mut checked, mut damaged) = (0, 0);
    for entry in entries::all(cache)? {
        if entry.kind != Kind::Block {
            continue;
        }
        let intact = match is_intact(&entry) {
            Ok(intact) => intact,
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        checked += 1;
        if !intact {
            damaged += 1;
            writeln!(out, "{} was damaged and is removed", entry.name)?;
            remove(&entry)?;
        }
    }
    writeln!(out, "{checked} blocks checked, {damaged} damaged")?;
    Ok(match damaged {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// A block is small enough to be read whole.
fn is_intact(entry: &Entry) -> io::Result<bool> {
    let data = std::fs::read(&entry.path)?;
    Ok(BlockHash::of(&data).to_string() == entry.name)
}
