//! A file that gets its name when it is complete.

use crate::error::FileError;
use crate::place::{Found, Kind, Place, changed, folder_of};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile, PathPersistError, TempPath};

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
/// target's name there is a whole file, or what was there before. A pipe or a character device is written to.
#[derive(Debug)]
pub struct WholeFile {
    path: PathBuf,
    file: File,
    state: State,
    /// What was at the path when this was made, which alone is replaced.
    found: Option<Found>,
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
    /// kind, unless `force` is set, and to be writable. Of a link the file to which it leads is replaced.
    ///
    /// # Errors
    ///
    /// [`FileError::Place`], [`FileError::Block`], [`FileError::Mount`], [`FileError::Folder`] or
    /// [`FileError::OtherFile`].
    pub fn open(path: &Path, kind: &Kind, force: bool, meanwhile: Meanwhile) -> Result<Self, FileError> {
        let (path, found) = match Place::of(path, kind, force)? {
            Place::Open(file) => {
                return Ok(Self { path: path.to_path_buf(), file, state: State::InPlace, found: None });
            }
            Place::Nothing => (path.to_path_buf(), None),
            Place::Replaced(path, found) => (path, Some(found)),
        };
        let (file, state) = beside(&path, meanwhile)?;
        Ok(Self { path, file, state, found })
    }

    /// The file, to be written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes all of it and finishes it.
    ///
    /// # Errors
    ///
    /// [`FileError::Write`], and as [`Self::finish`].
    pub fn write(self, contents: &[u8]) -> Result<(), FileError> {
        match (&self.file).write_all(contents) {
            Ok(()) => self.finish(),
            Err(source) => Err(FileError::Write { path: self.path.clone(), source }),
        }
    }

    /// The same, where others may write the same file at once: if one of them has put the same contents
    /// there, that is as good. What gets no name is not kept.
    ///
    /// # Errors
    ///
    /// [`FileError::Write`], and [`FileError::Name`]: what is there is something else.
    pub fn write_or_same(mut self, contents: &[u8]) -> Result<(), FileError> {
        if let Err(source) = (&self.file).write_all(contents) {
            return Err(FileError::Write { path: self.path.clone(), source });
        }
        let named = self.name();
        let is_same = || {
            let found = fs::metadata(&self.path).is_ok_and(|found| found.is_file());
            found && fs::read(&self.path).is_ok_and(|found| found == contents)
        };
        match named {
            Err(_) if is_same() => Ok(()),
            Err(source) => Err(FileError::Name { path: self.path.clone(), source, kept: None }),
            Ok(()) => Ok(()),
        }
    }

    /// Gives the complete file its name.
    ///
    /// # Errors
    ///
    /// [`FileError::Name`]: what was there before, or was put there meanwhile, is still there, and the file
    /// is kept under another name.
    pub fn finish(mut self) -> Result<(), FileError> {
        self.name().map_err(|source| FileError::Name {
            path: self.path.clone(),
            source,
            kept: self.keep().ok(),
        })
    }

    fn name(&mut self) -> io::Result<()> {
        if matches!(self.state, State::InPlace) {
            return Ok(());
        }
        if let Some(permissions) = self.found.as_ref().and_then(Found::permissions) {
            self.file.set_permissions(permissions)?;
        }
        // A system that goes down must not leave a name without its contents.
        self.file.sync_all()?;
        let is_there = match &self.found {
            Some(found) => found.is_still_at(&self.path)?,
            None => false,
        };
        if matches!(self.state, State::Unnamed) {
            if !is_there {
                return link(&self.file, &self.path).map_err(meanwhile_made);
            }
            // A link is made under a new name only, and a rename replaces.
            self.state = State::Part(linked(&self.file, &self.path)?);
        }
        let State::Part(part) = std::mem::replace(&mut self.state, State::InPlace) else { return Ok(()) };
        let renamed = if is_there { part.persist(&self.path) } else { new_name(part, &self.path) };
        renamed.map_err(|error| {
            self.state = State::Part(error.path);
            meanwhile_made(error.error)
        })
    }

    /// Keeps the file under a name of its own: beside its target, or in the folder for temporary files.
    fn keep(&mut self) -> io::Result<PathBuf> {
        match std::mem::replace(&mut self.state, State::InPlace) {
            // Its folder may be gone, and it with it.
            State::Part(part) if is_at(&self.file, &part) => return Ok(part.keep()?),
            State::Unnamed => {
                if let Ok(part) = linked(&self.file, &self.path) {
                    return Ok(part.keep()?);
                }
            }
            _ => {}
        }
        let prefix = prefix(&self.path)?;
        let copy = named(&prefix).tempfile().or_else(|_| named(OsStr::new(SHORT)).tempfile())?;
        (&self.file).rewind()?;
        io::copy(&mut &self.file, &mut copy.as_file())?;
        Ok(copy.keep()?.1)
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

/// Gives it a name that nothing has.
fn new_name(part: TempPath, path: &Path) -> Result<(), PathPersistError> {
    part.persist_noclobber(path).or_else(|error| {
        // A file system may have neither a rename that replaces nothing nor links.
        let is_free = fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if is_free { error.path.persist(path) } else { Err(error) }
    })
}

/// The name was free, and is no longer.
fn meanwhile_made(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::AlreadyExists { changed() } else { error }
}

/// Whether it is this file that has the name.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |facts: fs::Metadata| (facts.dev(), facts.ino());
    file.metadata().map(identity).ok() == fs::symlink_metadata(path).map(identity).ok()
}

/// A new file in the folder of another one.
fn beside(path: &Path, meanwhile: Meanwhile) -> Result<(File, State), FileError> {
    let made = || {
        if meanwhile == Meanwhile::Unnamed
            && let Ok(file) = unnamed(folder_of(path))
        {
            return Ok((file, State::Unnamed));
        }
        let new = |name: &Path| File::options().read(true).write(true).create_new(true).open(name);
        let (file, part) = near(path, new)?.into_parts();
        Ok((file, State::Part(part)))
    };
    made().map_err(|source: io::Error| FileError::Folder {
        path: path.to_path_buf(),
        folder: folder_of(path).to_path_buf(),
        source,
    })
}

/// Makes something beside `path` under a name that nothing else has.
fn near<T>(path: &Path, mut make: impl FnMut(&Path) -> io::Result<T>) -> io::Result<NamedTempFile<T>> {
    match named(&prefix(path)?).make_in(folder_of(path), &mut make) {
        // The name itself may be as long as a name can be.
        Err(error) if error.kind() == ErrorKind::InvalidFilename => {
            named(OsStr::new(SHORT)).make_in(folder_of(path), make)
        }
        made => made,
    }
}

/// How a name begins where that of the target is too long.
const SHORT: &str = "quire.";

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
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder, flags, mode)?.into())
}

/// Gives a file without a name this one, if nothing has it.
fn link(file: &File, name: &Path) -> io::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(linkat(CWD, &*own, CWD, name, AtFlags::SYMLINK_FOLLOW)?)
}

/// Gives a file without a name one beside `path`.
fn linked(file: &File, path: &Path) -> io::Result<TempPath> {
    Ok(near(path, |name| link(file, name))?.into_temp_path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

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

    /// Without this each is told only when the work is done.
    #[test]
    fn names_that_no_file_can_get_are_told_before_the_work() {
        let folder = tempfile::tempdir().unwrap();
        let long = "x".repeat(256);
        for name in ["new/", "new/.", "new/..", "", long.as_str(), &format!("{}x", "./".repeat(2100))] {
            let path = if name.is_empty() { PathBuf::new() } else { folder.path().join(name) };
            for meanwhile in [Meanwhile::Unnamed, Meanwhile::Part] {
                let error = WholeFile::open(&path, &LETTER, true, meanwhile).unwrap_err();
                assert!(matches!(error, FileError::Place { .. }), "{name}: {error}");
            }
        }
        assert_eq!(names(folder.path()), 0);
    }

    #[test]
    fn names_may_be_as_long_as_the_file_system_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x".repeat(255));
        for meanwhile in [Meanwhile::Unnamed, Meanwhile::Part, Meanwhile::Unnamed, Meanwhile::Part] {
            WholeFile::open(&path, &LETTER, false, meanwhile).unwrap().write(b"Dear").unwrap();
            assert_eq!(names(folder.path()), 1);
        }
    }

    /// Where the complete file is that did not get its name.
    #[track_caller]
    fn kept(done: Result<(), FileError>) -> PathBuf {
        match done {
            Err(FileError::Name { kept: Some(kept), source, .. }) => {
                assert_eq!(fs::read_to_string(&kept).unwrap(), "Dear A", "{source}");
                kept
            }
            done => panic!("{done:?}"),
        }
    }

    #[test]
    fn a_file_that_came_meanwhile_is_not_replaced() {
        for meanwhile in [Meanwhile::Unnamed, Meanwhile::Part] {
            for is_there in [false, true] {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("letter");
                if is_there {
                    fs::write(&path, "Dear Z").unwrap();
                }
                let whole = WholeFile::open(&path, &LETTER, true, meanwhile).unwrap();
                // Written in place, or another one.
                fs::write(&path, "my notes").unwrap();
                let kept = kept(whole.write(b"Dear A"));
                assert_eq!(kept.parent(), Some(folder.path()));
                assert_eq!(fs::read_to_string(&path).unwrap(), "my notes", "{meanwhile:?}, {is_there}");
                assert_eq!(names(folder.path()), 2);
            }
        }
        // One that went away is no reason.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter");
        for meanwhile in [Meanwhile::Unnamed, Meanwhile::Part] {
            fs::write(&path, "Dear Z").unwrap();
            let whole = WholeFile::open(&path, &LETTER, false, meanwhile).unwrap();
            fs::remove_file(&path).unwrap();
            whole.write(b"Dear A").unwrap();
            assert_eq!(names(folder.path()), 1);
        }
    }

    #[test]
    fn of_two_that_write_the_same_both_have_written_it() {
        for meanwhile in [Meanwhile::Unnamed, Meanwhile::Part] {
            for is_there in [false, true] {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("letter");
                if is_there {
                    fs::write(&path, "Dear Z").unwrap();
                }
                let open = || WholeFile::open(&path, &LETTER, false, meanwhile).unwrap();
                let [one, other, third] = [open(), open(), open()];
                one.write_or_same(b"Dear A").unwrap();
                other.write_or_same(b"Dear A").unwrap();
                let refused = third.write_or_same(b"Dear B");
                assert!(matches!(refused, Err(FileError::Name { kept: None, .. })), "{refused:?}");
                assert_eq!(fs::read_to_string(&path).unwrap(), "Dear A", "{meanwhile:?}, {is_there}");
                assert_eq!(names(folder.path()), 1, "nothing else is left");
            }
        }
    }

    #[test]
    fn a_file_whose_folder_went_away_is_kept() {
        for meanwhile in [Meanwhile::Unnamed, Meanwhile::Part] {
            let folder = tempfile::tempdir().unwrap();
            let whole = WholeFile::open(&folder.path().join("letter"), &LETTER, false, meanwhile).unwrap();
            drop(folder);
            let kept = kept(whole.write(b"Dear A"));
            fs::remove_file(kept).unwrap();
        }
    }

    /// Whom the file's mode or its use keeps from writing to it, is kept from replacing it.
    #[test]
    fn a_file_that_cannot_be_written_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter");
        // A program that runs cannot be written, by root neither. Another process copies it: Linux executes
        // no file that one which a test beside this one makes has open for writing.
        assert!(std::process::Command::new("cp").arg("/bin/sleep").arg(&path).status().unwrap().success());
        let mut child = std::process::Command::new(&path).arg("60").spawn().unwrap();
        for meanwhile in [Meanwhile::Unnamed, Meanwhile::Part] {
            let refused = WholeFile::open(&path, &LETTER, true, meanwhile);
            assert!(matches!(refused, Err(FileError::Place { .. })), "{refused:?}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        fs::write(&path, "Dear").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        let is_root = File::options().write(true).open(&path).is_ok();
        assert_eq!(WholeFile::open(&path, &LETTER, false, Meanwhile::Unnamed).is_ok(), is_root);
    }
}
