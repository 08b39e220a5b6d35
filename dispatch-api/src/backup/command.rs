//! The subcommands: flags, text for people, JSON for programs, exit status.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use units::format_size;

use super::copy_blocks::Damage;
use super::fsck::{Depth, FsckReport};
use super::snapshot::{CopyReport, DamageReport};
use crate::EX_CONFIG;

#[derive(Clone, Debug, Subcommand)]
pub enum Maintenance {
    /// Copy the state directory into a backup, also while the server runs
    ///
    /// The database is copied as of one moment, and each block that it names is in the backup. Only
    /// blocks that the backup does not have are copied. A kill leaves the backup before or the new
    /// one. It has all tokens and keys: protect it as the state directory.
    ///
    /// Exit status: 0 for a whole backup, 1 if something is damaged or the backup failed, 78 for a
    /// wrong directory. What is damaged is left out; the rest is saved.
    Backup {
        /// The backup: a new or empty directory, or an earlier backup of this server
        #[arg(value_name = "BACKUP")]
        dir: PathBuf,
        #[command(flatten)]
        format: Format,
    },
    /// Make the state directory, a new one, from a backup
    ///
    /// Each block is compared with its hash. Until all is copied, no server starts in the state
    /// directory; after a kill, run it again. Exit status as for backup.
    Restore {
        /// The backup
        #[arg(value_name = "BACKUP")]
        dir: PathBuf,
        #[command(flatten)]
        format: Format,
    },
    /// Check the state directory, or a backup: the database, and each block against its hash
    ///
    /// It changes nothing, and the server may run. Collections that miss blocks are named. Exit
    /// status: 0 if nothing is damaged, 1 if something is or the check failed, 78 for a wrong
    /// directory.
    Fsck {
        /// Look only whether each block is there, and do not read it
        #[arg(long)]
        quick: bool,
        #[command(flatten)]
        format: Format,
    },
}

#[derive(Clone, Copy, Debug, Args)]
pub struct Format {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs a subcommand, and prints what it did.
pub fn run(state_dir: &Path, subcommand: &Maintenance) -> ExitCode {
    let done = match subcommand {
        Maintenance::Backup { dir, format } => {
            super::create(state_dir, dir).map(|report| format.print_copy(&report))
        }
        Maintenance::Restore { dir, format } => {
            super::restore(dir, state_dir).map(|report| format.print_copy(&report))
        }
        Maintenance::Fsck { quick, format } => {
            let depth = match quick {
                true => Depth::Presence,
                false => Depth::Content,
            };
            super::fsck(state_dir, depth).map(|report| {
                format.print(&report, fsck_text(&report));
                report.is_sound()
            })
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("dispatch-api: {error}");
            match error.is_usage() {
                true => ExitCode::from(EX_CONFIG),
                false => ExitCode::FAILURE,
            }
        }
    }
}

impl Format {
    /// Prints the report, and returns whether all is well.
    fn print_copy(self, report: &CopyReport) -> bool {
        self.print(report, copy_text(report));
        report.damage.is_empty()
    }

    fn print(self, report: &impl Serialize, text: String) {
        use std::io::Write;
        let text = match self.json {
            true => serde_json::to_string_pretty(report).unwrap_or_default() + "\n",
            false => text,
        };
        // Whoever closed the pipe does not want to read it.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
}

fn copy_text(report: &CopyReport) -> String {
    let (copied, size) = (report.copied_blocks, format_size(report.copied_bytes));
    let done = match report.removed_blocks {
        Some(removed) => format!(
            "in the backup: {copied} copied now ({size}), {removed} removed that no collection has \
             any more"
        ),
        None => format!("restored: {copied} copied now ({size})"),
    };
    damage_text(&report.damage) + &format!("{} blocks {done}\n", report.blocks)
}

fn fsck_text(report: &FsckReport) -> String {
    let mut text = damage_text(&report.damage);
    for error in &report.database_errors {
        let _ = writeln!(text, "database: {error}");
    }
    if !report.database_errors.is_empty() {
        text +=
            "the database is damaged, so the blocks were not checked: restore it from a backup\n";
        return text;
    }
    let _ = writeln!(
        text,
        "{} collections with {} blocks ({}): {} bad blocks, {} damaged collections",
        report.collections,
        report.blocks,
        format_size(report.bytes),
        report.damage.bad_blocks.len(),
        report.damage.damaged_collections.len()
    );
    if report.blocks_without_sha256 > 0 {
        let _ = writeln!(
            text,
            "{} of the blocks have no SHA-256 to compare, only their MD5: the file system keeps no \
             attributes, or they were stored or copied without",
            report.blocks_without_sha256
        );
    }
    text
}

/// One line for each bad block and each damaged collection.
fn damage_text(report: &DamageReport) -> String {
    let mut text = String::new();
    for block in &report.bad_blocks {
        let damage = match &block.damage {
            Damage::Missing => "missing".to_owned(),
            Damage::Changed { found } => format!("damaged: its content has the hash {found}"),
            Damage::Unreadable { error } => format!("not readable: {error}"),
        };
        let _ = writeln!(text, "block {} is {damage}", block.hash);
    }
    for collection in &report.damaged_collections {
        let _ = write!(
            text,
            "collection {} {:?} is damaged:",
            collection.uuid, collection.name
        );
        if !collection.bad_blocks.is_empty() {
            let names = collection.bad_blocks.iter().map(ToString::to_string);
            let names: Vec<String> = names.collect();
            let _ = write!(
                text,
                " {} of its {} blocks are bad ({})",
                names.len(),
                collection.blocks,
                names.join(", ")
            );
        }
        if collection.bad_manifest {
            text += " its manifest does not fit its portable data hash";
        }
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_told_by_block_and_by_collection() {
        let hash = arvados_client::keep::BlockHash::of(b"foo");
        let report = DamageReport {
            bad_blocks: vec![super::super::copy_blocks::BadBlock {
                hash,
                damage: Damage::Missing,
            }],
            damaged_collections: vec![super::super::snapshot::DamagedCollection {
                uuid: "local-4zz18-aaaaaaaaaaaaaaa".into(),
                name: "mine".into(),
                portable_data_hash: String::new(),
                blocks: 2,
                bad_blocks: vec![hash],
                bad_manifest: false,
            }],
        };
        assert_eq!(
            damage_text(&report),
            "block acbd18db4cc2f85cedef654fccc4a4d8 is missing\n\
             collection local-4zz18-aaaaaaaaaaaaaaa \"mine\" is damaged: 1 of its 2 blocks are bad \
             (acbd18db4cc2f85cedef654fccc4a4d8)\n"
        );
    }
}
