//! What is at the place of a file that is to be written, looked at before the work that fills it.

use crate::error::FileError;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The number of bytes that tell a kind of file.
const HEAD: u64 = 64;

/// A kind of file, which replaces files of its own kind only.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// What it is called.
    pub name: &'static str,
    /// Whether a file that begins with these bytes is one. Some 64 bytes are given, if there are so many.
    pub is_one: fn(&[u8]) -> bool,
    /// What to do if another file is in the way.
    pub hint: &'static str,
}

/// What is at a place.
#[derive(Debug)]
pub(crate) enum Place {
    /// Nothing, in a folder or in none.
    Nothing,
    /// A pipe or a character device, open for writing.
    Open(File),
    /// A file, or a link that leads nowhere, and its path without links before it.
    Replaced(PathBuf, Found),
}

impl Place {
    /// What is at `path`, if a file of this kind can come there.
    pub(crate) fn of(path: &Path, kind: &Kind, force: bool) -> Result<Self, FileError> {
        let wrong = |source| FileError::Place { path: path.to_path_buf(), source };
        let facts = match fs::metadata(path) {
            Ok(facts) => facts,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if is_folder_s_name(path) {
                    return Err(wrong(ErrorKind::IsADirectory.into()));
                }
                return match fs::symlink_metadata(path) {
                    Ok(facts) => Ok(Self::Replaced(path.to_path_buf(), Found::new(&facts))),
                    Err(_) if path.file_name().is_none() => Err(wrong(error)),
                    Err(_) => Ok(Self::Nothing),
                };
            }
            Err(error) => return Err(wrong(error)),
        };
        if facts.is_dir() {
            return Err(wrong(ErrorKind::IsADirectory.into()));
        }
        if facts.file_type().is_block_device() {
            return Err(FileError::Block { path: path.to_path_buf() });
        }
        if !facts.is_file() {
            return Ok(Self::Open(File::options().write(true).open(path).map_err(wrong)?));
        }
        if !force && facts.len() > 0 && !is_one(path, kind).map_err(wrong)? {
            return Err(FileError::OtherFile { path: path.to_path_buf(), kind: kind.name, hint: kind.hint });
        }
        // A rename needs no right to the file, and who took it away meant what is in it.
        File::options().write(true).open(path).map_err(wrong)?;
        let whole = path.canonicalize().map_err(wrong)?;
        if is_mounted(&whole) {
            return Err(FileError::Mount { path: path.to_path_buf() });
        }
        Ok(Self::Replaced(whole, Found::new(&facts)))
    }
}

/// A file that was found.
#[derive(Debug)]
pub(crate) struct Found {
    /// None of a link.
    mode: Option<u32>,
    identity: Identity,
}

/// What no other file has, nor the same one when it was written to: device, inode, size and time.
type Identity = (u64, u64, u64, i64, i64);

fn identity(facts: &Metadata) -> Identity {
    (facts.dev(), facts.ino(), facts.len(), facts.mtime(), facts.mtime_nsec())
}

impl Found {
    fn new(facts: &Metadata) -> Self {
        let mode = facts.is_file().then(|| facts.mode() & 0o777);
        Self { mode, identity: identity(facts) }
    }

    /// Those that the file which replaces it gets.
    pub(crate) fn permissions(&self) -> Option<Permissions> {
        self.mode.map(Permissions::from_mode)
    }

    /// Whether it is at `path`, or nothing is. It is an error if there is another one, or it was written to.
    pub(crate) fn is_still_at(&self, path: &Path) -> io::Result<bool> {
        match fs::symlink_metadata(path) {
            Ok(now) if identity(&now) == self.identity => Ok(true),
            Ok(_) => Err(changed()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Another file than was found.
pub(crate) fn changed() -> io::Error {
    io::Error::new(
        ErrorKind::AlreadyExists,
        "another file was put there, or that file was changed, meanwhile",
    )
}

/// The folder that a file is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether Linux makes no file of this name: what follows the last slash is empty, or the folder itself.
fn is_folder_s_name(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    [&b"/"[..], b"/.", b"/.."].iter().any(|end| bytes.ends_with(end))
}

/// Whether something is mounted on the file: then no other can take its name.
fn is_mounted(path: &Path) -> bool {
    let facts = statx(CWD, path, AtFlags::empty(), StatxFlags::TYPE);
    facts.is_ok_and(|facts| facts.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Whether the file at `path` is of this kind.
fn is_one(path: &Path, kind: &Kind) -> io::Result<bool> {
    let mut start = Vec::new();
    File::open(path)?.take(HEAD).read_to_end(&mut start)?;
    Ok((kind.is_one)(&start))
}
