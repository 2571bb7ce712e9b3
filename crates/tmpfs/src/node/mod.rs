//! Handles of inodes, and what is asked of one.

mod bytes;
mod list;
mod names;
mod remove;
mod rename;
mod xattrs;

pub use bytes::Allocate;
pub use list::{DirectoryEntry, END, FIRST};
pub(crate) use rename::MovedName;
pub use rename::RenameOptions;

use crate::attributes::{Attributes, SetAttributes, Stat};
use crate::backend::Backend;
use crate::directory::Directory;
use crate::entry::LONGEST_NAME;
use crate::error::Error;
use crate::inode::{Content, Inode, Place};
use crate::instance::Instance;
use crate::sleeping::{Sleeping, Write};
use core::fmt;
use core::mem;
use core::ptr;

/// A handle of an inode: it lives as long as the handle, also without a name. Handles are cloned and dropped
/// by all threads; to drop the last one of a file without a name may sleep.
pub struct Node<'t, B: Backend> {
    pub(crate) instance: &'t Instance<'t, B>,
    place: Place<B>,
}

impl<'t, B: Backend> Node<'t, B> {
    /// A handle that takes over a count.
    ///
    /// # Safety
    ///
    /// The inode is of this file system, and the count the caller's.
    pub(crate) const unsafe fn from_counted(instance: &'t Instance<'t, B>, place: Place<B>) -> Self {
        Self { instance, place }
    }

    /// A handle of an inode that is counted otherwise.
    ///
    /// # Safety
    ///
    /// The inode is of this file system, and counted.
    unsafe fn of(instance: &'t Instance<'t, B>, place: Place<B>) -> Self {
        instance.hold(place);
        Self { instance, place }
    }

    /// The inode, with the count of this handle.
    fn into_counted(self) -> Place<B> {
        let place = self.place;
        mem::forget(self);
        place
    }

    pub(crate) fn inode(&self) -> &Inode<B> {
        // SAFETY: this handle counts it.
        unsafe { self.place.inode() }
    }

    fn directory(&self) -> Result<&Sleeping<Directory<Place<B>>>, Error> {
        self.inode().directory().ok_or(Error::NotDirectory)
    }

    fn attributes<R>(&self, access: impl FnOnce(&mut Attributes) -> R) -> R {
        self.inode().with_attributes(&self.instance.backend, access)
    }

    /// Whether both are handles of one inode.
    pub fn is_same(&self, other: &Self) -> bool {
        self.place == other.place
    }

    /// Whether both are of one file system.
    fn is_of_same_file_system(&self, other: &Self) -> bool {
        ptr::eq(self.instance, other.instance)
    }

    /// What `stat` tells.
    pub fn stat(&self) -> Stat {
        self.inode().stat(&self.instance.backend)
    }

    /// Changes attributes (`chmod`, `chown`, `utimensat`).
    pub fn set_attributes(&self, new: &SetAttributes) {
        let now = self.instance.now();
        self.attributes(|attributes| attributes.set(new, now));
    }

    /// It is read: where that is due its access time changes. Functions here that read do it; an embedder
    /// does it where a program maps a file, or runs it.
    pub fn accessed(&self) {
        let now = self.instance.now();
        self.attributes(|attributes| attributes.access(now, self.instance.access_times));
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: it is none.
    pub fn target(&self) -> Result<&[u8], Error> {
        match &self.inode().content {
            Content::Symlink(target) => Ok(target.bytes()),
            _ => Err(Error::Invalid),
        }
    }

    /// Reads a symbolic link (`readlink`): as many bytes as `to` has room for. Returns how many.
    ///
    /// # Errors
    ///
    /// As for [`target`](Self::target).
    pub fn read_link(&self, to: &mut [u8]) -> Result<usize, Error> {
        let target = self.target()?;
        let bytes = target.len().min(to.len());
        to[..bytes].copy_from_slice(&target[..bytes]);
        self.accessed();
        Ok(bytes)
    }
}

/// The entries of a directory, write-locked.
type LockedNames<'l, B> = Write<'l, Directory<Place<B>>, <B as Backend>::Platform>;

/// Checks a name that is looked for or made.
///
/// # Errors
///
/// [`Error::NotFound`] if it is empty, [`Error::NameTooLong`], and [`Error::Invalid`] for `.`, `..` and what
/// has a slash or a zero byte.
fn check_name(name: &[u8]) -> Result<(), Error> {
    match name {
        [] => Err(Error::NotFound),
        [b'.'] | [b'.', b'.'] => Err(Error::Invalid),
        _ if name.len() > LONGEST_NAME => Err(Error::NameTooLong),
        _ if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(Error::Invalid),
        _ => Ok(()),
    }
}

impl<B: Backend> Clone for Node<'_, B> {
    fn clone(&self) -> Self {
        // SAFETY: this handle counts the inode.
        unsafe { Self::of(self.instance, self.place) }
    }
}

impl<B: Backend> Drop for Node<'_, B> {
    fn drop(&mut self) {
        // SAFETY: the count is this handle's.
        unsafe { self.instance.put(self.place) };
    }
}

impl<B: Backend> fmt::Debug for Node<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inode = self.inode();
        f.debug_struct("Node").field("inode", &inode.number).field("kind", &inode.kind).finish()
    }
}
