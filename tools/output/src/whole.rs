//! A file that gets its name when it is complete.

use crate::error::FileError;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::{Builder, TempPath};

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

/// What a file is until it is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meanwhile {
    /// A file without a name, where the file system has such: nothing is left of it when the process is
    /// killed.
    Unnamed,
    /// A file beside the target whose name ends in `.part`: what is in it may be used if the process is
    /// killed.
    Part,
}

/// A file that is being written in the folder of its target, and renamed when it is complete: under the
/// target's name there is a whole file, or what was there before. A pipe or a device is written to.
#[derive(Debug)]
pub struct WholeFile {
    path: PathBuf,
    file: File,
    state: State,
    permissions: Option<Permissions>,
}

#[derive(Debug)]
enum State {
    /// It is a pipe or a device.
    InPlace,
    Unnamed,
    Part(TempPath),
}

impl WholeFile {
    /// Makes the file. What is at `path` is not changed yet. A file that is there has to be empty or of this
    /// kind, unless `force` is set. Of a link the file to which it leads is replaced.
    ///
    /// # Errors
    ///
    /// [`FileError::Place`], [`FileError::Folder`] or [`FileError::OtherFile`].
    pub fn open(path: &Path, kind: &Kind, force: bool, meanwhile: Meanwhile) -> Result<Self, FileError> {
        let wrong = |source| FileError::Place { path: path.to_path_buf(), source };
        let found = match fs::metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let (file, state) = beside(path, meanwhile)?;
                return Ok(Self { path: path.to_path_buf(), file, state, permissions: None });
            }
            Err(error) => return Err(wrong(error)),
        };
        if found.is_dir() {
            return Err(wrong(ErrorKind::IsADirectory.into()));
        }
        if !found.is_file() {
            let file = File::options().write(true).open(path).map_err(wrong)?;
            return Ok(Self { path: path.to_path_buf(), file, state: State::InPlace, permissions: None });
        }
        if !force && found.len() > 0 && !is_one(path, kind).map_err(wrong)? {
            return Err(FileError::OtherFile { path: path.to_path_buf(), kind: kind.name, hint: kind.hint });
        }
        let whole = path.canonicalize().map_err(wrong)?;
        let (file, state) = beside(&whole, meanwhile)?;
        let permissions = Permissions::from_mode(found.permissions().mode() & 0o777);
        Ok(Self { path: whole, file, state, permissions: Some(permissions) })
    }

    /// The file, to be written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes all of it and finishes it.
    ///
    /// # Errors
    ///
    /// [`FileError::Write`]; what was there before is still there.
    pub fn write(self, contents: &[u8]) -> Result<(), FileError> {
        match (&self.file).write_all(contents) {
            Ok(()) => self.finish(),
            Err(source) => Err(FileError::Write { path: self.path.clone(), source }),
        }
    }

    /// Gives the complete file its name.
    ///
    /// # Errors
    ///
    /// [`FileError::Write`]; what was there before is still there.
    pub fn finish(mut self) -> Result<(), FileError> {
        self.name().map_err(|source| FileError::Write { path: self.path.clone(), source })
    }

    fn name(&mut self) -> io::Result<()> {
        let state = std::mem::replace(&mut self.state, State::InPlace);
        if matches!(state, State::InPlace) {
            return Ok(());
        }
        if let Some(permissions) = self.permissions.take() {
            self.file.set_permissions(permissions)?;
        }
        // A system that goes down must not leave a name without its contents.
        self.file.sync_all()?;
        let part = match state {
            State::Part(part) => part,
            // A link is made under a new name only, and a rename replaces.
            _ => linked(&self.file, &self.path)?,
        };
        part.persist(&self.path).map_err(|error| error.error)
    }
}

impl Drop for WholeFile {
    /// Leaves nothing behind, except if the process itself fails: then a partial file may be useful.
    fn drop(&mut self) {
        if std::thread::panicking()
            && let State::Part(part) = std::mem::replace(&mut self.state, State::InPlace)
        {
            let _ = part.keep();
        }
    }
}

/// Whether the file at `path` is of this kind.
fn is_one(path: &Path, kind: &Kind) -> io::Result<bool> {
    let mut start = Vec::new();
    File::open(path)?.take(HEAD).read_to_end(&mut start)?;
    Ok((kind.is_one)(&start))
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file in the folder of another one.
fn beside(path: &Path, meanwhile: Meanwhile) -> Result<(File, State), FileError> {
    let made = || {
        path.file_name().ok_or(ErrorKind::InvalidInput)?;
        if meanwhile == Meanwhile::Unnamed
            && let Ok(file) = unnamed(folder_of(path))
        {
            return Ok((file, State::Unnamed));
        }
        let new = |name: &Path| File::options().write(true).create_new(true).open(name);
        let (file, part) = named(&prefix(path)?).make_in(folder_of(path), new)?.into_parts();
        Ok((file, State::Part(part)))
    };
    made().map_err(|source: io::Error| FileError::Folder {
        path: path.to_path_buf(),
        folder: folder_of(path).to_path_buf(),
        source,
    })
}

/// How the name of a file beside `path` begins.
fn prefix(path: &Path) -> io::Result<OsString> {
    let mut prefix = path.file_name().ok_or(ErrorKind::InvalidInput)?.to_owned();
    prefix.push(".");
    Ok(prefix)
}

/// Names that nothing else has and that cannot be guessed.
fn named(prefix: &OsStr) -> Builder<'_, 'static> {
    let mut builder = Builder::new();
    builder.prefix(prefix).suffix(".part");
    builder
}

/// A file without a name, which can get one.
fn unnamed(folder: &Path) -> io::Result<File> {
    // Its name is made through this file system.
    fs::metadata("/proc/self/fd")?;
    // As of any file that a program makes: the umask takes away what it does.
    let mode = Mode::from_raw_mode(0o666);
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder, flags, mode)?.into())
}

/// Gives a file without a name one beside `path`.
fn linked(file: &File, path: &Path) -> io::Result<TempPath> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |name: &Path| Ok(linkat(CWD, &*own, CWD, name, AtFlags::SYMLINK_FOLLOW)?);
    Ok(named(&prefix(path)?).make_in(folder_of(path), link)?.into_temp_path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const LETTER: Kind =
        Kind { name: "letter", is_one: |start| start.starts_with(b"Dear"), hint: "--force replaces it" };

    fn names(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter");
        for meanwhile in [Meanwhile::Unnamed, Meanwhile::Part] {
            let _ = fs::remove_file(&path);
            let part = WholeFile::open(&path, &LETTER, false, meanwhile).unwrap();
            part.file().write_all(b"Dear").unwrap();
            assert!(!path.exists());
            drop(part);
            assert_eq!(names(folder.path()), 0, "{meanwhile:?}: nothing is left of it");
            for text in ["Dear A", "Dear B"] {
                let whole = WholeFile::open(&path, &LETTER, false, meanwhile).unwrap();
                whole.write(text.as_bytes()).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), text);
            }
            assert_eq!(names(folder.path()), 1, "{meanwhile:?}");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o600, 0o600);
        }
    }

    #[test]
    fn only_its_own_kind_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        fs::write(&path, "my notes").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        for meanwhile in [Meanwhile::Unnamed, Meanwhile::Part] {
            let refused = WholeFile::open(&path, &LETTER, false, meanwhile);
            assert!(matches!(refused, Err(FileError::OtherFile { .. })), "{refused:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), "my notes");
        }
        WholeFile::open(&path, &LETTER, true, Meanwhile::Unnamed).unwrap().write(b"Dear").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "Dear");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640, "as it was");
    }

    /// A link that leads nowhere is itself replaced: what it names is not made.
    #[test]
    fn a_link_without_a_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["letter", "other"].map(|name| folder.path().join(name));
        symlink(&other, &path).unwrap();
        WholeFile::open(&path, &LETTER, false, Meanwhile::Part).unwrap().write(b"Dear").unwrap();
        assert!(!other.exists());
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        // The file of a link that leads to one.
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        WholeFile::open(&link, &LETTER, false, Meanwhile::Unnamed).unwrap().write(b"Dear B").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "Dear B");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        for (path, folder) in [("/nonexistent/letter", " /nonexistent: "), ("/proc/letter", " /proc: ")] {
            for meanwhile in [Meanwhile::Unnamed, Meanwhile::Part] {
                let error = WholeFile::open(Path::new(path), &LETTER, false, meanwhile).unwrap_err();
                assert!(matches!(error, FileError::Folder { .. }), "{error}");
                let line = error.to_string();
                assert!(line.contains(folder) && line.matches(folder.trim_end()).count() == 1, "{line}");
            }
        }
        let error = WholeFile::open(Path::new("/"), &LETTER, false, Meanwhile::Part);
        assert!(matches!(error, Err(FileError::Place { .. })));
    }

    #[test]
    fn a_full_device_is_told() {
        let open = |path| WholeFile::open(Path::new(path), &LETTER, false, Meanwhile::Unnamed).unwrap();
        assert!(matches!(open("/dev/full").write(b"x"), Err(FileError::Write { .. })));
        assert!(open("/dev/null").write(b"x").is_ok());
    }
}
