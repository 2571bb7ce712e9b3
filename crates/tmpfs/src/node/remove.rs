//! Names that are removed.

use super::{LockedNames, Node, check_name};
use crate::backend::{Backend, Time};
use crate::entry::{self, LooseEntry};
use crate::error::Error;
use crate::inode::Place;

impl<B: Backend> Node<'_, B> {
    /// Removes a name of what is no directory (`unlink`). What has no name and no handle any more is freed.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::IsDirectory`]; as for [`lookup`](Self::lookup).
    pub fn unlink(&self, name: &[u8]) -> Result<(), Error> {
        let directory = self.directory()?;
        check_name(name)?;
        // Dropped after the lock: that may free the inode.
        let child;
        let mut names = directory.write(self.instance.backend.platform());
        let place = names.find(name).ok_or(Error::NotFound)?;
        // SAFETY: the entry counts it, and the directory is locked.
        if unsafe { place.inode() }.kind.is_directory() {
            return Err(Error::IsDirectory);
        }
        let entry = names.remove(name);
        // SAFETY: the count was the entry's, which is gone.
        child = unsafe { Self::from_counted(self.instance, place) };
        self.free_entry(entry);
        let now = self.instance.now();
        child.lose_link(now);
        self.attributes(|attributes| {
            attributes.entries -= 1;
            attributes.modify(now);
        });
        drop(names);
        Ok(())
    }

    /// Removes a directory in this one (`rmdir`).
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::NotEmpty`]; [`Error::NotDirectory`]: this or that is none; as for
    /// [`lookup`](Self::lookup).
    pub fn remove_directory(&self, name: &[u8]) -> Result<(), Error> {
        let directory = self.directory()?;
        check_name(name)?;
        let child;
        let mut names = directory.write(self.instance.backend.platform());
        let place = names.find(name).ok_or(Error::NotFound)?;
        // SAFETY: the entry counts it, and the directory is locked.
        child = unsafe { Self::of(self.instance, place) };
        let now = self.instance.now();
        child.kill_directory(child.lock_empty()?, now);
        let entry = names.remove(name);
        self.free_entry(entry);
        // SAFETY: the count was the entry's, which is gone. `child` has another.
        drop(unsafe { Self::from_counted(self.instance, place) });
        self.attributes(|attributes| {
            attributes.entries -= 1;
            attributes.links -= 1;
            attributes.modify(now);
        });
        drop(names);
        Ok(())
    }

    /// Locks a directory that is to go. The lock of the directory that it is in is held.
    ///
    /// # Errors
    ///
    /// [`Error::NotDirectory`] and [`Error::NotEmpty`].
    pub(super) fn lock_empty(&self) -> Result<LockedNames<'_, B>, Error> {
        let names = self.directory()?.write(self.instance.backend.platform());
        if names.count() > 0 { Err(Error::NotEmpty) } else { Ok(names) }
    }

    /// Makes an empty directory dead, of which the entry goes before anything is unlocked.
    pub(super) fn kill_directory(&self, mut names: LockedNames<'_, B>, now: Time) {
        names.kill();
        self.attributes(|attributes| {
            attributes.links = 0;
            attributes.changed = now;
        });
    }

    /// A name of what is no directory has gone.
    pub(super) fn lose_link(&self, now: Time) {
        self.attributes(|attributes| {
            if attributes.links > 1 {
                self.instance.counts().give_back_link();
            }
            attributes.links -= 1;
            attributes.changed = now;
        });
    }

    /// Frees an entry that was removed from a directory.
    pub(super) fn free_entry(&self, entry: Option<entry::Place<Place<B>>>) {
        if let Some(entry) = entry {
            // SAFETY: all entries of a file system are of its heap, and this one is in no directory.
            drop(unsafe { LooseEntry::<_, B::Platform>::from_place(self.instance.heap, entry) });
        }
    }
}
