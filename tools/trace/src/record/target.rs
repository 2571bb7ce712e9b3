//! The file that a recording is written to.
//!
//! It gets its name when it is complete, so that under this name there is a complete recording or the
//! previous file.

use super::error::RecordError;
use super::options::{RecordOptions, RecordTarget};
use crate::format::MAGIC;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct Target {
    file: File,
    /// Its temporary name, and its final one; `None` if it is written in place.
    names: Option<Names>,
}

#[derive(Debug)]
struct Names {
    part: PathBuf,
    whole: PathBuf,
    permissions: Option<Permissions>,
}

impl Target {
    /// Opens the output. An existing file of its name is not changed yet.
    pub(crate) fn open(options: &RecordOptions) -> Result<Self, RecordError> {
        let path = match &options.output {
            RecordTarget::Stdout if io::stdout().is_terminal() => return Err(RecordError::Terminal),
            RecordTarget::Stdout => {
                let stdout = io::stdout().as_fd().try_clone_to_owned();
                let file = stdout.map_err(|source| RecordError::Start { source })?.into();
                return Ok(Self { file, names: None });
            }
            RecordTarget::Open(file) => {
                let file = file.try_clone().map_err(|source| RecordError::Start { source })?;
                return Ok(Self { file, names: None });
            }
            RecordTarget::File(path) => path,
        };
        Self::beside(path, options.force).map_err(|source| match source.kind() {
            ErrorKind::AlreadyExists => RecordError::NotARecording { path: path.clone() },
            _ => RecordError::Output { path: path.clone(), source },
        })
    }

    fn beside(path: &Path, force: bool) -> io::Result<Self> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let Some(metadata) = metadata else {
            let (file, part) = part_of(path)?;
            let names = Names { part, whole: path.to_path_buf(), permissions: None };
            return Ok(Self { file, names: Some(names) });
        };
        if !metadata.is_file() {
            // A device or a pipe is written to; a directory is an error here.
            return Ok(Self { file: File::options().write(true).open(path)?, names: None });
        }
        if !force && !is_recording(path)? {
            return Err(ErrorKind::AlreadyExists.into());
        }
        // The file that a link leads to is replaced, not the link.
        let whole = fs::canonicalize(path)?;
        let (file, part) = part_of(&whole)?;
        let names = Names { part, whole, permissions: Some(metadata.permissions()) };
        Ok(Self { file, names: Some(names) })
    }

    /// The file, to be written.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Gives a complete recording its name.
    pub(crate) fn name(mut self) -> Result<(), RecordError> {
        let Some(names) = self.names.take() else { return Ok(()) };
        let kept = names.permissions.map_or(Ok(()), |permissions| self.file.set_permissions(permissions));
        kept.and_then(|()| fs::rename(&names.part, &names.whole)).map_err(|source| {
            drop(fs::remove_file(&names.part));
            RecordError::Output { path: names.whole, source }
        })
    }
}

impl Drop for Target {
    /// Leaves nothing behind, except if the recorder itself failed: then the partial file may be useful.
    fn drop(&mut self) {
        if let Some(names) = self.names.take().filter(|_| !std::thread::panicking()) {
            drop(fs::remove_file(names.part));
        }
    }
}

/// Creates a file in the folder of another one, with a name that no other recorder uses.
fn part_of(path: &Path) -> io::Result<(File, PathBuf)> {
    for number in 0_u32.. {
        let mut name = path.file_name().ok_or(ErrorKind::InvalidInput)?.to_owned();
        name.push(format!(".{}-{number}.part", std::process::id()));
        let part = path.with_file_name(name);
        match File::options().write(true).create_new(true).open(&part) {
            Ok(file) => return Ok((file, part)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Whether a file begins as a recording does, or is empty.
fn is_recording(path: &Path) -> io::Result<bool> {
    let mut begin = Vec::new();
    File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut begin)?;
    Ok(begin.is_empty() || begin == MAGIC)
}
