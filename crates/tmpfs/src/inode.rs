//! An inode, and its place in memory.

use crate::attributes::{Attributes, Kind, Stat};
use crate::backend::{Backend, FileData};
use crate::directory::Directory;
use crate::sleeping::Sleeping;
use crate::space::Account;
use crate::xattr::Xattrs;
use core::ptr::NonNull;
use quire_mm::platform::PAGE_SIZE;
use quire_sync::SpinLock;
use quire_sync::atomic::AtomicU64;

/// Bytes that an entry adds to the size of a directory, and `.` and `..` each, as in Linux.
const ENTRY_BYTES: u64 = 20;
/// Bytes of a block of `st_blocks`.
const BLOCK: u64 = 512;
/// A longer target of a symbolic link counts as a page, as in Linux.
pub(crate) const LONGEST_SHORT_TARGET: usize = 127;

/// An inode. It lives as long as it is counted: by each entry, each handle, and the directories in it.
pub(crate) struct Inode<B: Backend> {
    pub(crate) references: AtomicU64,
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) state: SpinLock<State<B>, B::Platform>,
    pub(crate) xattrs: Sleeping<Xattrs>,
    pub(crate) content: Content<B>,
    /// Its place in the counts, until it is freed. Regular files have it with their bytes.
    pub(crate) _account: Option<Account>,
    /// Used by the audit only.
    pub(crate) seen: AtomicU64,
}

/// What a spin lock guards.
pub(crate) struct State<B: Backend> {
    pub(crate) attributes: Attributes,
    /// The directory that a directory is in, or was in last; it is counted. The root has none. Changes under
    /// Rename.
    pub(crate) parent: Option<Place<B>>,
}

/// What an inode has by its kind.
pub(crate) enum Content<B: Backend> {
    Directory(Sleeping<Directory<Place<B>>>),
    Regular {
        /// Held to write, to change the size and to make holes.
        lock: Sleeping<()>,
        data: B::Data,
    },
    Symlink(Target),
    None,
}

/// The target of a symbolic link, which never changes.
pub(crate) struct Target {
    pub(crate) start: NonNull<u8>,
    pub(crate) length: usize,
}

// SAFETY: the bytes are the inode's, and nothing writes to them.
unsafe impl Send for Target {}
// SAFETY: as for `Send`.
unsafe impl Sync for Target {}

impl Target {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes live as long as the inode.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// Whether it counts as a page.
    pub(crate) const fn is_long(&self) -> bool {
        self.length > LONGEST_SHORT_TARGET
    }
}

impl<B: Backend> Inode<B> {
    /// The attributes, under their lock.
    pub(crate) fn with_attributes<R>(&self, backend: &B, access: impl FnOnce(&mut Attributes) -> R) -> R {
        self.with_state(backend, |state| access(&mut state.attributes))
    }

    pub(crate) fn with_state<R>(&self, backend: &B, access: impl FnOnce(&mut State<B>) -> R) -> R {
        use quire_arch::Platform;
        let _pin = backend.platform().pin();
        access(&mut self.state.lock())
    }

    pub(crate) const fn directory(&self) -> Option<&Sleeping<Directory<Place<B>>>> {
        match &self.content {
            Content::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    pub(crate) fn stat(&self, backend: &B) -> Stat {
        let attributes = self.with_attributes(backend, |attributes| *attributes);
        let (size, blocks) = match &self.content {
            Content::Directory(_) => ((attributes.entries + 2) * ENTRY_BYTES, 0),
            Content::Regular { data, .. } => (data.size(), data.pages() * (PAGE_SIZE / BLOCK)),
            Content::Symlink(target) => {
                (target.length as u64, if target.is_long() { PAGE_SIZE / BLOCK } else { 0 })
            }
            Content::None => (0, 0),
        };
        Stat {
            inode: self.number,
            kind: self.kind,
            permissions: attributes.permissions,
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            size,
            blocks,
            accessed: attributes.accessed,
            modified: attributes.modified,
            changed: attributes.changed,
            born: attributes.born,
        }
    }
}

/// An inode, by its place in memory. Who has it as a value knows why the inode lives.
pub(crate) struct Place<B: Backend>(NonNull<Inode<B>>);

// SAFETY: an inode is `Send` and `Sync`: its parts are, or are behind locks.
unsafe impl<B: Backend> Send for Place<B> {}
// SAFETY: as for `Send`.
unsafe impl<B: Backend> Sync for Place<B> {}

impl<B: Backend> Clone for Place<B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Place<B> {}

impl<B: Backend> PartialEq for Place<B> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<B: Backend> Eq for Place<B> {}

impl<B: Backend> Place<B> {
    pub(crate) const fn new(inode: NonNull<Inode<B>>) -> Self {
        Self(inode)
    }

    pub(crate) const fn pointer(self) -> NonNull<Inode<B>> {
        self.0
    }

    /// Orders inodes of which none is above the other.
    pub(crate) fn is_before(self, other: Self) -> bool {
        self.0 < other.0
    }

    /// The inode.
    ///
    /// # Safety
    ///
    /// It is counted as long as the result is used: by a handle, by an entry whose directory is locked or by
    /// a directory in it whose place cannot change.
    pub(crate) const unsafe fn inode<'i>(self) -> &'i Inode<B> {
        // SAFETY: it lives (caller).
        unsafe { self.0.as_ref() }
    }
}
