//! Refuses files with huge holes. A container makes a file of many terabytes in no time and without
//! disk space, and saving its zeros would take hours.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::error::OutputError;
use super::host_fs;
use super::left_out_report::BadEntries;
use super::scan::OutputPlan;

/// Maximum size of all holes that are saved as zeros, in bytes.
const MAX_HOLES: u64 = 16 << 30;
/// Maximum number of holes that are looked at in one file; the rest counts as data.
const MAX_HOLE_COUNT: usize = 100_000;

pub fn check(plan: &mut OutputPlan, bad_entries: BadEntries) -> Result<(), OutputError> {
    check_within(plan, bad_entries, MAX_HOLES)
}

fn check_within(
    plan: &mut OutputPlan,
    bad_entries: BadEntries,
    limit: u64,
) -> Result<(), OutputError> {
    let mut left = limit;
    // Smaller files cannot matter, and there may be many.
    let files = plan.files.iter().enumerate();
    for (index, file) in files.filter(|(_, file)| file.size > limit / 1024) {
        let path = || file.path.to_string();
        let holes = host_fs::open_below(&file.host.root, &file.host.relative.to_string())
            .and_then(|open| size_of_holes(&open))
            .map_err(|source| OutputError::Read {
                path: path(),
                source,
            });
        let fits = holes.and_then(|holes| {
            left.checked_sub(holes).ok_or_else(|| OutputError::Sparse {
                path: path(),
                holes,
                limit,
            })
        });
        match fits {
            Ok(rest) => left = rest,
            Err(error) => {
                plan.left_out.add_or_refuse(bad_entries, error)?;
                plan.skipped.insert(index);
            }
        }
    }
    Ok(())
}

fn size_of_holes(file: &File) -> io::Result<u64> {
    let facts = file.metadata()?;
    let size = facts.len();
    // A file that a file system compressed takes few blocks as well, and has no holes.
    if facts.blocks().saturating_mul(512) >= size {
        return Ok(0);
    }
    let (mut at, mut holes) = (0, 0);
    for _ in 0..MAX_HOLE_COUNT {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // There is no data behind.
            Err(Errno::NXIO) => return Ok(holes + size.saturating_sub(at)),
            // The file system does not know its holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        holes += data.saturating_sub(at);
        at = seek(file, SeekFrom::Hole(data))?;
        if at >= size {
            break;
        }
    }
    Ok(holes)
}

#[cfg(test)]
mod tests {
    use arvados_client::manifest::SharedPath;

    use super::*;
    use crate::output::resolve::HostPath;
    use crate::output::scan::LocalFile;
    use std::os::unix::fs::FileExt;

    #[test]
    fn zeros_that_were_never_written_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, size: u64, data: &[u64]| {
            let path = dir.path().join(name);
            let file = File::create(path).unwrap();
            file.set_len(size).unwrap();
            for at in data {
                file.write_all_at(&[1; 4096], *at).unwrap();
            }
            file.sync_all().unwrap();
            LocalFile {
                path: SharedPath::whole(name),
                host: HostPath {
                    root: dir.path().to_owned().into(),
                    relative: SharedPath::whole(name),
                },
                size,
            }
        };
        let mib = 1 << 20;
        let full = make("full", 8192, &[0, 4096]);
        let some = make("some", mib, &[0, mib / 2]);
        let huge = make("huge", 1 << 40, &[1 << 30]);
        let check = |files: Vec<LocalFile>, bad_entries, limit| {
            let mut plan = OutputPlan {
                files,
                ..OutputPlan::default()
            };
            check_within(&mut plan, bad_entries, limit).map(|()| plan)
        };
        check(vec![full], BadEntries::Refuse, 4096).unwrap();
        let plan = check(vec![some], BadEntries::Refuse, mib).unwrap();
        let files = vec![plan.files.into_iter().next().unwrap(), huge];
        let plan = check(files, BadEntries::LeaveOut, 2 * mib).unwrap();
        assert_eq!(plan.skipped.iter().collect::<Vec<_>>(), [&1]);
        assert!(plan.left_out.sentences()[0].contains("output file huge is sparse"));
        let error = check(plan.files, BadEntries::Refuse, 2 * mib).unwrap_err();
        let OutputError::Sparse { path, holes, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((path.as_str(), holes), ("huge", (1 << 40) - 4096));
    }
}
