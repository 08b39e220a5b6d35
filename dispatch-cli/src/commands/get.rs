//! `dispatch get`: downloads the output of a job, or any collection, into a directory.

use std::path::{Path, PathBuf};

use arvados_client::keep::{FileReader, KeepClient};
use arvados_client::manifest::{Entry, FileTree};
use clap::Args;
use serde_json::{Value, json};

use super::wait::eprint_warnings;
use crate::collection::{self, StoredCollection};
use crate::completion;
use crate::download;
use crate::error::CliError;
use crate::input_spec::CollectionSpec;
use crate::job::Job;
use crate::job_id::JobId;
use crate::job_output;
use crate::jobs;
use crate::printer::{Output, eprint_note, progress};
use crate::selection::JobSpan;
use crate::session::Session;
use crate::text::plural;
use units::format_size;

/// Fetch the output of a job, or a collection
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dispatch get 7              everything job 7 made, into this directory
  dispatch get 7:table.csv -  one file of it, to standard output
  dispatch get --list 7       only what there is
  dispatch get 7-9 results    the outputs of three jobs, into results/7, results/8 and results/9")]
pub struct Get {
    /// Number, uuid or name of a job, or uuid of a collection, with :PATH for one file or directory
    /// of it; or a range of numbers, like 7-9
    #[arg(value_name = "ID[:PATH]", add = completion::job_numbers())]
    pub what: String,
    /// Target directory, created if it does not exist; - writes one file to standard output
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Overwrite existing files
    #[arg(short, long)]
    pub force: bool,
    /// Only list the files and their sizes
    #[arg(short, long)]
    pub list: bool,
}

pub async fn run(args: Get, session: &Session, out: Output) -> Result<(), CliError> {
    if let Ok(JobSpan::Range(first, last)) = args.what.parse() {
        return get_range(&args, first, last, session, out).await;
    }
    let Located { stored, path, job } = locate(&args.what, session).await?;
    let tree = stored.subtree(&path)?;
    if args.list {
        return list(&tree, out);
    }
    if args.dir == Path::new("-") {
        let Some(Entry::File(extents)) = stored.tree.lookup(&path) else {
            return Err(CliError::NotOneFile(args.what));
        };
        let mut reader = FileReader::new(keep(session).await?, extents);
        while let Some(chunk) = reader.next_chunk().await? {
            out.bytes(&chunk)?;
        }
        return Ok(());
    }
    let fetched = fetch(&args, &stored, &tree, &args.dir, session).await?;
    if out.json {
        return out.json(&fetched.json(&args.dir, &stored));
    }
    fetched.report(&args.dir, job.as_ref());
    Ok(())
}

/// Fetches the outputs of the jobs with these numbers, each into a directory with its number. Those
/// after a job without an output are fetched, too.
async fn get_range(
    args: &Get,
    first: u64,
    last: u64,
    session: &Session,
    out: Output,
) -> Result<(), CliError> {
    if args.list || args.dir == Path::new("-") {
        return Err(CliError::NotOneJob(args.what.clone()));
    }
    let found = jobs::in_range(&session.client, first, last).await?;
    if found.is_empty() {
        return Err(CliError::NoJob(args.what.clone()));
    }
    let (mut failed, mut rows) = (None, Vec::new());
    for job in found {
        let dir = args.dir.join(job.name());
        let fetched = async {
            let stored = collection::open(&session.client, &job_output::collection(&job)?).await?;
            let fetched = fetch(args, &stored, &stored.tree, &dir, session).await?;
            Ok::<_, CliError>((stored, fetched))
        };
        match fetched.await {
            Ok((stored, fetched)) => {
                rows.push(fetched.json(&dir, &stored));
                fetched.report(&dir, Some(&job));
            }
            Err(error) if error.is_outage() => return Err(error),
            // The last one ends the command.
            Err(error) => {
                if let Some(earlier) = failed.replace(error) {
                    eprint_note(&format!("dispatch: {earlier}"));
                }
            }
        }
    }
    if out.json {
        out.json(&rows)?;
    }
    failed.map_or(Ok(()), Err)
}

async fn keep(session: &Session) -> Result<KeepClient, CliError> {
    let client = &session.client;
    Ok(client.keep(client.keep_options().await?).await?)
}

/// What was fetched.
struct Fetched {
    files: u64,
    bytes: u64,
    /// The collection that it is a part of has no file at all.
    of_nothing: bool,
}

async fn fetch(
    args: &Get,
    stored: &StoredCollection,
    tree: &FileTree,
    dir: &Path,
    session: &Session,
) -> Result<Fetched, CliError> {
    let bytes = tree.files().map(|(_, extents)| size(extents)).sum();
    let bar = progress(bytes, "downloading");
    let keep = keep(session).await?;
    let files = download::into_dir(keep, tree, dir, args.force, &bar).await?;
    bar.finish_and_clear();
    Ok(Fetched {
        files,
        bytes,
        of_nothing: stored.tree.files().next().is_none(),
    })
}

impl Fetched {
    fn json(&self, dir: &Path, stored: &StoredCollection) -> Value {
        json!({
            "dir": dir, "files": self.files, "bytes": self.bytes, "portable_data_hash": stored.pdh,
        })
    }

    /// Says what was fetched, and what a job did not write or lost.
    fn report(&self, dir: &Path, job: Option<&Job>) {
        let (files, size) = (plural(self.files, "file"), format_size(self.bytes));
        eprint_note(&format!("{files}, {size}, into {}", dir.display()));
        let Some(job) = job else { return };
        if self.of_nothing {
            let (name, path) = (job.name(), &job.request.output_path);
            eprint_note(&format!(
                "job {name} wrote no files below {path}, which is what becomes its output"
            ));
        }
        eprint_warnings(job);
    }
}

fn size(extents: &[arvados_client::manifest::Extent]) -> u64 {
    extents.iter().map(|extent| extent.len).sum()
}

fn list(tree: &FileTree, out: Output) -> Result<(), CliError> {
    if out.json {
        let files: Vec<_> = tree
            .files()
            .map(|(path, extents)| json!({"path": path, "size": size(extents)}))
            .collect();
        return out.json(&files);
    }
    for (path, extents) in tree.files() {
        out.line(&format!("{:>10}  {path}", format_size(size(extents))))?;
    }
    Ok(())
}

/// A stored collection, a path in it, and the job whose output it is.
struct Located {
    stored: StoredCollection,
    path: String,
    job: Option<Job>,
}

/// Finds the collection, or the output of the job, and the path in it.
async fn locate(what: &str, session: &Session) -> Result<Located, CliError> {
    let client = &session.client;
    if let Some(CollectionSpec { collection, path }) = CollectionSpec::parse(what)? {
        let stored = collection::open(client, &collection).await?;
        return Ok(Located {
            stored,
            path,
            job: None,
        });
    }
    let (id, path) = what.split_once(':').unwrap_or((what, ""));
    let id = JobId::or_name(id).map_err(|_| CliError::NoJob(what.to_owned()))?;
    let job = jobs::find(client, &id).await?;
    let output = job_output::collection(&job)?;
    Ok(Located {
        stored: collection::open(client, &output).await?,
        path: path.to_owned(),
        job: Some(job),
    })
}
