//! The bundled recordings. The program has them in itself, since an installed one has no repository around
//! it.

use quire_output::FileError;
use quire_trace::format::EXTENSION;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

macro_rules! recordings {
    ($($name:literal)*) => {
        &[$(($name, include_bytes!(concat!("../../recordings/", $name, ".qtr")))),*]
    };
}

/// Each with its name.
const RECORDINGS: &[(&str, &[u8])] = recordings!(
    "cpp-headers" "gcc-compile" "git-history" "git-log" "instance-pool" "linker" "python-modules"
    "python-structures" "realloc-growth" "shell-pipes" "sort-threads" "sqlite-file" "sqlite-queries" "web-server"
    "xz-threads"
);

/// A folder of files that is removed on drop.
#[derive(Debug)]
pub(crate) struct Unpacked {
    _folder: TempDir,
    /// By name.
    pub(crate) files: Vec<PathBuf>,
}

/// Writes the recordings to a new folder.
pub(crate) fn unpack() -> Result<Unpacked, FileError> {
    let failed = |source| FileError::Temporary { folder: tempfile::env::temp_dir(), source };
    let folder = tempfile::Builder::new().prefix("quire-recordings-").tempdir().map_err(failed)?;
    let mut files = Vec::new();
    for (name, bytes) in RECORDINGS {
        let file = folder.path().join(name).with_extension(EXTENSION);
        std::fs::write(&file, bytes).map_err(failed)?;
        files.push(file);
    }
    Ok(Unpacked { _folder: folder, files })
}

/// The recordings in `folder`, by name; none if there is no such folder.
pub(crate) fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION))
        .collect();
    files.sort();
    files
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn all_recordings_of_the_repository_are_in_the_program_and_leave_nothing_behind() {
        let repository = in_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings"));
        let unpacked = unpack().unwrap();
        let names = |files: &[PathBuf]| {
            files.iter().map(|file| file.file_name().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&unpacked.files), names(&repository));
        for (ours, theirs) in unpacked.files.iter().zip(&repository) {
            assert_eq!(std::fs::read(ours).unwrap(), std::fs::read(theirs).unwrap(), "{}", ours.display());
        }
        let folder = unpacked.files[0].parent().unwrap().to_owned();
        drop(unpacked);
        assert!(!folder.exists());
    }
}
