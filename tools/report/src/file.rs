//! The file that a page or a trace is written to: completely, or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use thiserror::Error;

/// Why it could not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// Nothing can be written there: what the caller named is wrong.
    #[error("{}: {_1}", _0.display())]
    Place(PathBuf, io::Error),
    /// There is a file, and it is not of the kind that would be written: it is not replaced.
    #[error("{} is there and is no {_1}; remove it first, or name another file", _0.display())]
    OtherFile(PathBuf, &'static str),
    /// The disk is full, or something else went wrong while it was written. What was there before is still
    /// there.
    #[error("{} was not written: {_1}", _0.display())]
    Write(PathBuf, io::Error),
}

/// The target of a file. A regular file is written in the same folder and renamed, so that it is never
/// partial; a pipe or a device is written to.
#[derive(Debug)]
pub struct ReportFile {
    path: PathBuf,
    is_regular: bool,
}

impl ReportFile {
    /// A place for a page. Nothing is written yet.
    ///
    /// # Errors
    ///
    /// [`FileError::Place`] or [`FileError::OtherFile`].
    pub fn for_page(path: &Path) -> Result<Self, FileError> {
        Self::new(path, "page", |start| start.to_ascii_lowercase().starts_with(b"<!doctype html"))
    }

    /// A place for a trace of Perfetto's. Nothing is written yet.
    ///
    /// # Errors
    ///
    /// [`FileError::Place`] or [`FileError::OtherFile`].
    pub fn for_trace(path: &Path) -> Result<Self, FileError> {
        Self::new(path, "trace for Perfetto", |start| start.first() == Some(&crate::perfetto::FIRST_BYTE))
    }

    /// `is_ours` says whether a file that begins so may be replaced.
    fn new(path: &Path, kind: &'static str, is_ours: impl Fn(&[u8]) -> bool) -> Result<Self, FileError> {
        let wrong = |error| FileError::Place(path.to_path_buf(), error);
        let found = match std::fs::metadata(path) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(wrong(error)),
        };
        if found.as_ref().is_some_and(std::fs::Metadata::is_dir) {
            return Err(wrong(io::ErrorKind::IsADirectory.into()));
        }
        if let Some(found) = found.as_ref().filter(|found| !found.is_file()) {
            debug_assert!(!found.is_dir());
            OpenOptions::new().write(true).open(path).map_err(wrong)?;
            return Ok(Self { path: path.to_path_buf(), is_regular: false });
        }
        // What a link names is replaced, not the link.
        let path = if found.is_some() { path.canonicalize().map_err(wrong)? } else { path.to_path_buf() };
        if found.is_some_and(|found| found.len() > 0) {
            let mut start = Vec::new();
            let read = File::open(&path).and_then(|file| file.take(64).read_to_end(&mut start));
            read.map_err(|error| FileError::Place(path.clone(), error))?;
            if !is_ours(&start) {
                return Err(FileError::OtherFile(path, kind));
            }
        }
        let file = Self { path, is_regular: true };
        // That it can be written is known before the work begins.
        file.beside().map_err(|error| FileError::Place(file.path.clone(), error))?;
        Ok(file)
    }

    /// A file without a reader yet, in the same folder.
    fn beside(&self) -> io::Result<NamedTempFile> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        tempfile::Builder::new().prefix(".quire-").tempfile_in(folder.unwrap_or(Path::new(".")))
    }

    /// Writes it.
    ///
    /// # Errors
    ///
    /// [`FileError::Write`]; what was there before is still there.
    pub fn write(self, contents: &[u8]) -> Result<(), FileError> {
        self.write_all(contents).map_err(|error| FileError::Write(self.path, error))
    }

    fn write_all(&self, contents: &[u8]) -> io::Result<()> {
        if !self.is_regular {
            return OpenOptions::new().write(true).open(&self.path)?.write_all(contents);
        }
        use std::os::unix::fs::PermissionsExt;
        let mut file = self.beside()?;
        file.write_all(contents)?;
        // As any file that a program makes: a temporary one is its owner's alone.
        let mode = std::fs::metadata(&self.path).map_or(0o644, |found| found.permissions().mode());
        file.as_file().set_permissions(std::fs::Permissions::from_mode(mode & 0o777))?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("page.html");
        for text in ["<!doctype html>1", "<!doctype html>2"] {
            ReportFile::for_page(&path).expect("a place").write(text.as_bytes()).expect("it is written");
            assert_eq!(std::fs::read_to_string(&path).expect("a file"), text);
        }
        std::fs::write(&path, "mine").expect("a file");
        assert!(matches!(ReportFile::for_page(&path), Err(FileError::OtherFile(..))));
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), "mine");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left over");
    }

    #[test]
    fn a_wrong_place_is_found_before_anything_is_written() {
        for path in ["/nonexistent/page.html", "/", "/proc/page.html"] {
            assert!(matches!(ReportFile::for_page(Path::new(path)), Err(FileError::Place(..))), "{path}");
        }
    }

    #[test]
    fn a_full_device_is_told() {
        let file = ReportFile::for_page(Path::new("/dev/full")).expect("a place");
        assert!(matches!(file.write(b"x"), Err(FileError::Write(..))));
        assert!(ReportFile::for_page(Path::new("/dev/null")).expect("a place").write(b"x").is_ok());
    }
}
