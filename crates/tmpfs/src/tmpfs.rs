//! A file system: its root, its figures, its end.

use crate::backend::Backend;
use crate::error::Error;
use crate::inode::Place;
use crate::instance::{Instance, New, Options};
use crate::node::Node;
use crate::space::Limits;
use core::fmt;
use quire_mm::platform::PAGE_SIZE;
use quire_slab::KernelHeap;

/// What `statfs` tells of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileSystemStat {
    /// `f_type`.
    pub magic: u64,
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks in all; without a limit 0, as are those that are free.
    pub blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// Inodes in all; without a limit 0, as are those that are free.
    pub inodes: u64,
    /// Inodes that are free.
    pub free_inodes: u64,
    /// Bytes of the longest name.
    pub longest_name: u64,
}

/// What is in use, whether there is a limit or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Pages of files and of long symbolic links.
    pub pages: u64,
    /// Inodes, those without a name and those of files that are only mapped included.
    pub inodes: u64,
    /// Bytes of the space for inodes: 1024 for each, and for each name of a file but its first, and those of
    /// extended attributes.
    pub inode_bytes: u64,
}

/// A tmpfs: a tree of directories in memory.
///
/// All CPUs may call it and its [`Node`]s at once. It knows no credentials: who may do what is the embedder's
/// to check, for which [`Walk`](crate::Walk) asks in each directory that it searches. When it is dropped all
/// that is in it goes, but for files that are mapped: their bytes and their part of its limits last until
/// they are unmapped.
pub struct Tmpfs<'m, B: Backend> {
    instance: Instance<'m, B>,
    /// It is counted.
    root: Place<B>,
}

impl<'m, B: Backend> Tmpfs<'m, B> {
    /// `f_type` of a tmpfs.
    const MAGIC: u64 = 0x0102_1994;

    /// A file system with an empty root. Its inodes and names are allocated from `heap`.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`], and [`Error::NoSpace`] if it may not even have a root.
    pub fn new(heap: &'m KernelHeap<'m, B::Platform>, backend: B, options: &Options) -> Result<Self, Error> {
        let instance = Instance::new(heap, backend, options)?;
        let root = instance.new_inode(New::Directory, &options.root, None, true)?;
        Ok(Self { instance, root })
    }

    /// The root.
    pub fn root(&self) -> Node<'_, B> {
        self.instance.hold(self.root);
        // SAFETY: it was just counted.
        unsafe { Node::from_counted(&self.instance, self.root) }
    }

    /// What was given to it.
    pub fn backend(&self) -> &B {
        &self.instance.backend
    }

    /// What `statfs` tells.
    pub fn stat(&self) -> FileSystemStat {
        let (used, limit) = self.instance.counts().pages();
        let (_, taken, inodes) = self.instance.counts().inodes();
        FileSystemStat {
            magic: Self::MAGIC,
            block_size: PAGE_SIZE,
            blocks: limit.unwrap_or(0),
            free_blocks: limit.map_or(0, |limit| limit.saturating_sub(used)),
            inodes: inodes.unwrap_or(0),
            free_inodes: inodes.map_or(0, |limit| limit.saturating_sub(taken)),
            longest_name: crate::entry::LONGEST_NAME as u64,
        }
    }

    /// What is in use.
    pub fn usage(&self) -> Usage {
        let counts = self.instance.counts();
        Usage { pages: counts.pages().0, inodes: counts.inodes().0, inode_bytes: counts.inode_bytes() }
    }

    /// Changes the limits (a remount).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], as in Linux: more is in use, or there was no limit and is to be one.
    pub fn set_limits(&self, limits: Limits) -> Result<(), Error> {
        self.instance.counts().set_limits(limits)
    }
}

impl<B: Backend> Drop for Tmpfs<'_, B> {
    fn drop(&mut self) {
        // SAFETY: handles borrow the file system, so none is left, and the root is counted.
        unsafe { self.instance.empty(self.root) };
        // SAFETY: the count is this one's.
        unsafe { self.instance.put(self.root) };
    }
}

impl<B: Backend> fmt::Debug for Tmpfs<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tmpfs").field("usage", &self.usage()).finish_non_exhaustive()
    }
}
