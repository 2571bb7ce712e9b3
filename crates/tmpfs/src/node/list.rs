//! Listings of directories.

use super::Node;
use crate::backend::Backend;
use crate::error::Error;
use core::fmt;

/// Where a listing begins.
pub const FIRST: u64 = 0;
/// Where a listing ends.
pub const END: u64 = i64::MAX as u64;

/// The position of `..`.
const PARENT: u64 = 1;
/// The position of the newest entry.
const NEWEST: u64 = 2;

/// An entry of a directory, as a listing shows it.
#[derive(Clone, Copy)]
pub struct DirectoryEntry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The number of the inode.
    pub inode: u64,
    /// `d_type`.
    pub entry_type: u8,
    /// Its position. `d_off` of an entry is the position of the next one, or [`END`].
    pub position: u64,
}

impl fmt::Debug for DirectoryEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectoryEntry")
            .field("name", &self.name.escape_ascii())
            .field("inode", &self.inode)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> Node<'_, B> {
    /// Calls `visit` with each entry of the directory from a position on: `.`, `..`, then names from the
    /// newest to the oldest, until it returns false. Returns the position to go on at: of the entry that was
    /// not taken, or [`END`]. An entry that exists all the time is listed once, whatever else comes and goes;
    /// one that is removed need not exist to go on at its position.
    ///
    /// The directory is locked: `visit` may access a program's memory, but calls nothing of a file system.
    ///
    /// # Errors
    ///
    /// [`Error::NotDirectory`]; [`Error::NotFound`]: the directory was removed.
    pub fn list(
        &self,
        position: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<u64, Error> {
        let directory = self.directory()?;
        let parent = self.parent()?;
        let names = directory.read(self.instance.backend.platform());
        if names.is_dead() {
            return Err(Error::NotFound);
        }
        let entry_type = self.inode().kind.entry_type();
        let dots: [(&[u8], u64); 2] = [(b".", self.inode().number), (b"..", parent.inode().number)];
        let mut stopped = None;
        for (at, (name, inode)) in (FIRST..).zip(dots) {
            if position <= at && stopped.is_none() {
                let entry = DirectoryEntry { name, inode, entry_type, position: at };
                stopped = Some(at).filter(|_| !visit(&entry));
            }
        }
        let mut most = if position <= NEWEST { END - 1 } else { position };
        while stopped.is_none()
            && position < END
            && let Some((name, place, offset)) = names.at_most(most)
        {
            // SAFETY: the entry counts it, and the directory is locked.
            let child = unsafe { place.inode() };
            let entry = DirectoryEntry {
                name,
                inode: child.number,
                entry_type: child.kind.entry_type(),
                position: offset,
            };
            stopped = Some(offset).filter(|_| !visit(&entry));
            most = offset - 1;
        }
        drop(names);
        self.accessed();
        Ok(stopped.unwrap_or(END))
    }
}

const _: () = assert!(PARENT + 1 == NEWEST && NEWEST < crate::directory::FIRST_OFFSET);
