//! `dispatch get`: downloads the output of a job, or any collection, into a directory.

use std::path::{Path, PathBuf};

use arvados_client::keep::FileReader;
use arvados_client::manifest::{Entry, FileTree};
use clap::Args;
use serde_json::json;

use super::wait::eprint_warnings;
use crate::collection::{self, StoredCollection};
use crate::download;
use crate::error::CliError;
use crate::input_spec::CollectionSpec;
use crate::job::{Job, JobState};
use crate::job_id::JobId;
use crate::jobs;
use crate::printer::{Output, eprint_note, progress};
use crate::session::Session;
use crate::text::{plural, strip_control};
use units::format_size;

/// Fetch the output of a job, or a collection
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dispatch get 7              everything job 7 made, into this directory
  dispatch get 7:table.csv -  one file of it, to standard output
  dispatch get --list 7       only what there is")]
pub struct Get {
    /// Number or uuid of a job or collection, with :PATH for one file or directory of it
    #[arg(value_name = "ID[:PATH]")]
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
    let Located { stored, path, job } = locate(&args.what, session).await?;
    let tree = stored.subtree(&path)?;
    if args.list {
        return list(&tree, out);
    }
    let total = tree.files().map(|(_, extents)| size(extents)).sum();
    let client = &session.client;
    let keep = client.keep(client.keep_options().await?).await?;
    if args.dir == Path::new("-") {
        let Some(Entry::File(extents)) = stored.tree.lookup(&path) else {
            return Err(CliError::NotOneFile(args.what));
        };
        let mut reader = FileReader::new(keep, extents);
        while let Some(chunk) = reader.next_chunk().await? {
            out.bytes(&chunk)?;
        }
        return Ok(());
    }
    let bar = progress(total, "downloading");
    let files = download::into_dir(&keep, &tree, &args.dir, args.force, &bar).await?;
    bar.finish_and_clear();
    if out.json {
        return out.json(&json!({
            "dir": args.dir, "files": files, "bytes": total, "portable_data_hash": stored.pdh,
        }));
    }
    let count = plural(files, "file");
    eprint_note(&format!(
        "{count}, {}, into {}",
        format_size(total),
        args.dir.display()
    ));
    if let Some(job) = job {
        let (name, path) = (job.name(), &job.request.output_path);
        if files == 0 && stored.tree.files().next().is_none() {
            eprint_note(&format!(
                "job {name} wrote no files below {path}, which is what becomes its output"
            ));
        }
        eprint_warnings(&job);
    }
    Ok(())
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
        out.line(&format!(
            "{:>10}  {}",
            format_size(size(extents)),
            strip_control(&path)
        ))?;
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
    let id: JobId = id.parse().map_err(|_| CliError::NoJob(what.to_owned()))?;
    let job = jobs::find(client, &id).await?;
    let output = output(&job)?;
    Ok(Located {
        stored: collection::open(client, &output).await?,
        path: path.to_owned(),
        job: Some(job),
    })
}

fn output(job: &Job) -> Result<String, CliError> {
    let content = job.container.as_ref().and_then(|c| c.output.as_ref());
    let own = job.request.output_uuid.as_ref().map(ToString::to_string);
    if let Some(output) = own.or_else(|| content.map(ToString::to_string)) {
        return Ok(output);
    }
    let name = job.name();
    let why = match (job.state(), job.error()) {
        (JobState::Cancelled, Some(error)) => format!("it was cancelled: {}", strip_control(error)),
        (JobState::Cancelled, None) => "it was cancelled".to_owned(),
        (JobState::Complete, _) => "none was saved".to_owned(),
        (JobState::Held, _) => "it is on hold (priority 0) and never ran".to_owned(),
        (state, _) => format!(
            "it is {}; wait for it with: dispatch wait {name}",
            state.as_str()
        ),
    };
    Err(CliError::NoOutput { job: name, why })
}
