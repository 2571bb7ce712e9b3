//! What all inodes of a file system share: where they are allocated, counted and freed.

use crate::attributes::{AccessTimes, Attributes, Kind, Owner, SET_GROUP_ID};
use crate::backend::{Backend, Time};
use crate::directory::Directory;
use crate::entry::{LooseEntry, mix};
use crate::error::Error;
use crate::inode::{Content, Inode, Place, State, Target};
use crate::sleeping::Sleeping;
use crate::space::{Account, Counts, Limits};
use crate::xattr::Xattrs;
use core::alloc::Layout;
use core::ptr::{self, NonNull};
use quire_arch::LockClass;
use quire_slab::KernelHeap;
use quire_sync::atomic::{AtomicU64, Ordering, fence};
use quire_sync::{RwSleepLock, SpinLock};

/// The longest target of a symbolic link, in bytes.
const LONGEST_TARGET: usize = 4095;

/// What is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum New<'a> {
    /// An empty regular file.
    Regular,
    /// An empty directory.
    Directory,
    /// A symbolic link to this path.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device with this number.
    Character(u64),
    /// A block device with this number.
    Block(u64),
}

impl New<'_> {
    /// # Errors
    ///
    /// As `symlink` refuses a target: [`Error::NotFound`] and [`Error::NameTooLong`].
    pub(crate) const fn check(&self) -> Result<(), Error> {
        match self {
            Self::Symlink([]) => Err(Error::NotFound),
            Self::Symlink(target) if target.len() > LONGEST_TARGET => Err(Error::NameTooLong),
            _ => Ok(()),
        }
    }

    const fn kind(&self) -> Kind {
        match *self {
            Self::Regular => Kind::Regular,
            Self::Directory => Kind::Directory,
            Self::Symlink(_) => Kind::Symlink,
            Self::Fifo => Kind::Fifo,
            Self::Socket => Kind::Socket,
            Self::Character(device) => Kind::Character(device),
            Self::Block(device) => Kind::Block(device),
        }
    }
}

/// How a file system is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How large it may become.
    pub limits: Limits,
    /// The owner and the permissions of the root.
    pub root: Owner,
    /// When a read sets the access time.
    pub access_times: AccessTimes,
}

impl Default for Options {
    /// Without limits, with a root that everyone may write to and only owners remove from (01777).
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            root: Owner { permissions: 0o1777, uid: 0, gid: 0 },
            access_times: AccessTimes::default(),
        }
    }
}

/// What all inodes of a file system share.
pub(crate) struct Instance<'m, B: Backend> {
    pub(crate) backend: B,
    pub(crate) heap: &'m KernelHeap<'m, B::Platform>,
    /// Held by what moves directories: while it is held no directory gets another parent.
    pub(crate) rename: RwSleepLock,
    pub(crate) access_times: AccessTimes,
    counts: NonNull<Counts>,
    next_number: AtomicU64,
    /// Where the seeds of directories come from.
    random: AtomicU64,
}

// SAFETY: the counts are atomic, and the file system's; all else is `Send`.
unsafe impl<B: Backend> Send for Instance<'_, B> {}
// SAFETY: as for `Send`.
unsafe impl<B: Backend> Sync for Instance<'_, B> {}

impl<'m, B: Backend> Instance<'m, B> {
    /// Without inodes.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    pub(crate) fn new(
        heap: &'m KernelHeap<'m, B::Platform>,
        backend: B,
        options: &Options,
    ) -> Result<Self, Error> {
        let counts = heap.allocate(Layout::new::<Counts>())?.cast::<Counts>();
        // SAFETY: the memory is this call's and has room for the counts.
        unsafe { counts.write(Counts::new(options.limits)) };
        let now = backend.now();
        let seed =
            u64::from(now.nanoseconds) ^ now.seconds.cast_unsigned() << 30 ^ counts.addr().get() as u64;
        Ok(Self {
            backend,
            heap,
            rename: RwSleepLock::new(LockClass::Rename),
            access_times: options.access_times,
            counts,
            next_number: AtomicU64::new(1),
            random: AtomicU64::new(mix(seed)),
        })
    }

    pub(crate) fn counts(&self) -> &Counts {
        // SAFETY: they live as long as the file system.
        unsafe { self.counts.as_ref() }
    }

    pub(crate) fn now(&self) -> Time {
        self.backend.now()
    }

    /// A new inode, counted once, for its first handle. It has its links already; without a `name` it has
    /// none, and may get one.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`], [`Error::NoMemory`], and of a symbolic link [`Error::NotFound`] for an empty
    /// target, [`Error::NameTooLong`].
    pub(crate) fn new_inode(
        &self,
        new: New<'_>,
        owner: &Owner,
        parent: Option<Place<B>>,
        has_name: bool,
    ) -> Result<Place<B>, Error> {
        let kind = new.kind();
        new.check()?;
        let links = match (has_name, kind) {
            (false, _) => 0,
            (true, Kind::Directory) => 2,
            (true, _) => 1,
        };
        let mut attributes = Attributes::new(&self.owner_in(owner, kind, parent), links, self.now());
        attributes.linkable &= kind == Kind::Regular;
        // SAFETY: the counts live at least until the file system goes, and then until `is_last`.
        let account = unsafe { Account::new(self.counts) }?;
        let memory = self.heap.allocate(Layout::new::<Inode<B>>())?.cast::<Inode<B>>();
        let content = match self.new_content(new, account) {
            Ok(content) => content,
            Err(error) => {
                // SAFETY: it was just allocated with this layout, and nothing uses it.
                unsafe { self.heap.free(memory.cast(), Layout::new::<Inode<B>>()) };
                return Err(error);
            }
        };
        let (content, account) = content;
        let parent = parent.filter(|_| kind.is_directory());
        if let Some(parent) = parent {
            self.hold(parent);
        }
        let inode = Inode {
            references: AtomicU64::new(1),
            // Relaxed: a number that no other inode gets.
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
            kind,
            state: SpinLock::new(LockClass::InodeAttributes, State { attributes, parent }),
            xattrs: Sleeping::new(LockClass::Inode, Xattrs::default()),
            content,
            _account: account,
            seen: AtomicU64::new(0),
        };
        // SAFETY: the memory is this call's and has room for the inode.
        unsafe { memory.write(inode) };
        Ok(Place::new(memory))
    }

    /// The owner of what is made in `parent`: a directory with set-group-ID passes on its group, and that to
    /// directories.
    fn owner_in(&self, owner: &Owner, kind: Kind, parent: Option<Place<B>>) -> Owner {
        let mut owner = *owner;
        // SAFETY: the caller has a handle to the parent.
        let parent = parent.map(|parent| unsafe { parent.inode() });
        let of_parent = parent.map(|parent| parent.with_attributes(&self.backend, |attributes| *attributes));
        if let Some(directory) = of_parent
            && directory.permissions & SET_GROUP_ID != 0
        {
            owner.gid = directory.gid;
            if kind.is_directory() {
                owner.permissions |= SET_GROUP_ID;
            }
        }
        owner
    }

    fn new_content(&self, new: New<'_>, account: Account) -> Result<(Content<B>, Option<Account>), Error> {
        Ok(match new {
            New::Regular => {
                let data = self.backend.create(account)?;
                (Content::Regular { lock: Sleeping::new(LockClass::Inode, ()), data }, None)
            }
            New::Directory => {
                // Relaxed: a number that no other directory gets.
                let seed = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
                let directory = Directory::new(mix(seed));
                (Content::Directory(Sleeping::new(LockClass::Inode, directory)), Some(account))
            }
            New::Symlink(path) => {
                let target = self.new_target(path)?;
                (Content::Symlink(target), Some(account))
            }
            _ => (Content::None, Some(account)),
        })
    }

    fn new_target(&self, path: &[u8]) -> Result<Target, Error> {
        let start = self.heap.allocate(layout_of_target(path.len()))?;
        let target = Target { start, length: path.len() };
        if target.is_long()
            && let Err(error) = self.counts().take_page()
        {
            // SAFETY: it was just allocated with this layout, and nothing uses it.
            unsafe { self.heap.free(start, layout_of_target(path.len())) };
            return Err(error);
        }
        // SAFETY: the memory is this call's and has room for the bytes.
        unsafe { ptr::copy_nonoverlapping(path.as_ptr(), start.as_ptr(), path.len()) };
        Ok(target)
    }

    /// An entry that leads to `child`.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`].
    pub(crate) fn new_entry(
        &self,
        name: &[u8],
        child: Place<B>,
    ) -> Result<LooseEntry<'_, Place<B>, B::Platform>, Error> {
        Ok(LooseEntry::new(self.heap, name, child)?)
    }

    /// Counts an inode once more, of which the caller knows that it is counted.
    pub(crate) fn hold(&self, place: Place<B>) {
        // SAFETY: it is counted (caller). Relaxed: nothing is read that another count did not make visible.
        unsafe { place.inode() }.references.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an inode once less; the last one frees it. May sleep.
    ///
    /// # Safety
    ///
    /// The count is the caller's.
    pub(crate) unsafe fn put(&self, place: Place<B>) {
        let mut next = Some(place);
        // A directory that was removed and goes may be the last that counted the one that it was in.
        while let Some(place) = next.take() {
            // SAFETY: it is counted until here (caller).
            // Release pairs with the fence below of the thread that frees it.
            if unsafe { place.inode() }.references.fetch_sub(1, Ordering::Release) == 1 {
                fence(Ordering::Acquire);
                // SAFETY: that was the last count, so nothing else reaches the inode.
                next = unsafe { self.free_inode(place) };
            }
        }
    }

    /// Frees an inode and returns the directory that it counted.
    ///
    /// # Safety
    ///
    /// Nothing else reaches it.
    unsafe fn free_inode(&self, place: Place<B>) -> Option<Place<B>> {
        let pointer = place.pointer();
        // SAFETY: nothing else reaches it (caller).
        let inode = unsafe { &mut *pointer.as_ptr() };
        let (links, parent) =
            inode.with_state(&self.backend, |state| (state.attributes.links, state.parent.take()));
        debug_assert!(links == 0 || inode.kind.is_directory(), "an inode with {links} links is freed");
        self.counts().give_back_attribute(inode.xattrs.get_mut().clear(self.heap));
        if let Content::Directory(directory) = &mut inode.content {
            debug_assert_eq!(directory.get_mut().count(), 0, "a directory with entries is freed");
        }
        if let Content::Symlink(target) = &inode.content {
            if target.is_long() {
                self.counts().give_back_page();
            }
            // SAFETY: it was allocated with this layout from this heap, and goes with the inode.
            unsafe { self.heap.free(target.start, layout_of_target(target.length)) };
        }
        // SAFETY: nothing reaches it any more, and it was allocated with this layout from this heap.
        unsafe {
            pointer.drop_in_place();
            self.heap.free(pointer.cast(), Layout::new::<Inode<B>>());
        }
        parent
    }

    /// Removes all that is in the directory `root` and below.
    ///
    /// # Safety
    ///
    /// No handle is left, and `root` is counted.
    pub(crate) unsafe fn empty(&self, root: Place<B>) {
        let mut current = root;
        loop {
            // SAFETY: the root is counted by the caller; every other directory here was counted by the entry
            // that was just removed. No handle is left, so nothing else changes a directory.
            let inode = unsafe { current.inode() };
            let popped = inode.directory().and_then(|names| names.write(self.backend.platform()).pop());
            if let Some((entry, child)) = popped {
                // SAFETY: the entry is of this heap, and was taken out.
                drop(unsafe { LooseEntry::<_, B::Platform>::from_place(self.heap, entry) });
                // SAFETY: the entry counted it.
                let inode = unsafe { child.inode() };
                inode.with_attributes(&self.backend, |attributes| {
                    attributes.links = attributes.links.saturating_sub(1);
                    if attributes.links > 0 && !inode.kind.is_directory() {
                        self.counts().give_back_link();
                    }
                });
                if inode.kind.is_directory() {
                    current = child;
                } else {
                    // SAFETY: the count was the entry's.
                    unsafe { self.put(child) };
                }
                continue;
            }
            if current == root {
                return;
            }
            let parent = inode.with_state(&self.backend, |state| state.parent);
            // SAFETY: the count was the entry's.
            unsafe { self.put(current) };
            current = parent.unwrap_or(root);
        }
    }
}

impl<B: Backend> Drop for Instance<'_, B> {
    fn drop(&mut self) {
        // Where files are still mapped, or held by reclaim, the counts stay, as long as the machine: they are
        // few bytes.
        if self.counts().is_last() {
            // SAFETY: they were allocated with this layout from this heap, and nothing else holds them.
            unsafe { self.heap.free(self.counts.cast(), Layout::new::<Counts>()) };
        }
    }
}

fn layout_of_target(length: usize) -> Layout {
    // SAFETY: an alignment of 1, and a size of less than a page.
    unsafe { Layout::from_size_align_unchecked(length, 1) }
}
