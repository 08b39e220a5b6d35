//! `crunch-run cache ls|gc|verify`: what the node's cache has, making it smaller, and whether it is what it says.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use arvados_client::keep::BlockHash;
use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use super::entries::{self, Entry, Kind};
use super::sweep::remove;
use super::{Limits, Share, sweep};
use crate::run::default_cache;

/// The node's cache: blocks of collections and unpacked images.
#[derive(Debug, Parser)]
#[command(name = "crunch-run cache", version)]
pub struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List what it has, and how much that is
    Ls {
        #[command(flatten)]
        place: Place,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Remove what was left half-made and, longest unused first, what is beyond the limits
    Gc {
        #[command(flatten)]
        place: Place,
        /// Most that it may take, like 50GiB or 20%; 0 empties it
        #[arg(long, value_name = "SIZE", default_value_t = Limits::default().size)]
        cache_size: Share,
        /// What it leaves free of its file system
        #[arg(long, value_name = "SIZE", default_value_t = Limits::default().free)]
        cache_free: Share,
    },
    /// Check every block against its hash and remove those that are damaged; 1 if there are any
    Verify {
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Debug, Args)]
struct Place {
    /// The cache [default: /var/cache/crunch-run, or in ~/.cache]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

impl Place {
    fn dir(&self) -> PathBuf {
        let env = crate::environment::variable;
        self.cache.clone().unwrap_or_else(|| default_cache(env))
    }
}

/// Does what the flags say; damage found is an exit status of its own.
pub fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    match &flags.command {
        Command::Ls { place, json } => list(&place.dir(), *json, &mut out)?,
        Command::Gc {
            place,
            cache_size,
            cache_free,
        } => {
            let limits = Limits {
                size: *cache_size,
                free: *cache_free,
            };
            let swept = sweep(&place.dir(), limits)?;
            let (freed, size) = (ByteSize(swept.freed), ByteSize(swept.size));
            writeln!(
                out,
                "{} entries removed, {freed} freed, {size} left",
                swept.removed
            )?;
            if swept.in_use > 0 {
                writeln!(out, "{} more would have gone, but are in use", swept.in_use)?;
            }
        }
        Command::Verify { place } => return verify(&place.dir(), &mut out),
    }
    Ok(ExitCode::SUCCESS)
}

fn list(cache: &Path, as_json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let mut entries = entries::all(cache)?;
    entries.sort_by_key(|entry| entry.used);
    let used = |entry: &Entry| Timestamp::try_from(entry.used).unwrap_or_default();
    for entry in &entries {
        let in_use = entry.kind == Kind::Layer && entry.hold()?.is_none();
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
            // Gone meanwhile.
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
