//! The limits of a file system: pages and inodes.
//!
//! What is counted here may live longer than the file system: a file that is mapped keeps its pages and its
//! inode until it is unmapped. So the counts lie in memory of the machine that is freed when the file system
//! goes, or else, if files are mapped then, as long as the machine.

use crate::error::Error;
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicU64, Ordering};

/// What an inode takes of the space for inodes, in bytes; extended attributes take of it too.
const INODE_BYTES: u64 = 1024;

/// How large a file system may become. Without a value there is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Pages of all files and long symbolic links (mount option `size`, in pages).
    pub pages: Option<u64>,
    /// Inodes (`nr_inodes`). As in Linux, each link of a file beside the first one counts as an inode, and
    /// extended attributes take 1 KiB of an inode.
    pub inodes: Option<u64>,
}

/// A sum with a limit.
#[derive(Debug)]
struct Limited {
    used: AtomicU64,
    limit: AtomicU64,
}

impl Limited {
    fn new(limit: u64) -> Self {
        Self { used: AtomicU64::new(0), limit: AtomicU64::new(limit) }
    }

    // Relaxed: the sums guard nothing.

    fn take(&self, more: u64) -> Result<(), Error> {
        let limit = self.limit.load(Ordering::Relaxed);
        let next = |used: u64| used.checked_add(more).filter(|sum| *sum <= limit || more == 0);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .map(drop)
            .map_err(|_| Error::NoSpace)
    }

    fn give_back(&self, less: u64) {
        // A file of an embedder may give back more than it took. Then more is used than is counted.
        let rest = |used: u64| Some(used.saturating_sub(less));
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
    }

    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The limit, if there is one.
    fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit != u64::MAX)
    }
}

/// The counts of a file system.
#[derive(Debug)]
pub(crate) struct Counts {
    pages: Limited,
    /// Bytes of inodes and attributes.
    inode_bytes: Limited,
    inodes: AtomicU64,
    /// Accounts, and one for the file system.
    holders: AtomicU64,
}

impl Counts {
    pub(crate) fn new(limits: Limits) -> Self {
        let inodes = limits.inodes.and_then(|inodes| inodes.checked_mul(INODE_BYTES));
        Self {
            pages: Limited::new(limits.pages.unwrap_or(u64::MAX)),
            inode_bytes: Limited::new(inodes.unwrap_or(u64::MAX)),
            inodes: AtomicU64::new(0),
            holders: AtomicU64::new(1),
        }
    }

    /// Whether only the file system is left to hold it.
    pub(crate) fn is_last(&self) -> bool {
        // Acquire pairs with the release of `Account::drop`: all that it did to the counts came before.
        self.holders.load(Ordering::Acquire) == 1
    }

    /// Pages in use, and the limit.
    pub(crate) fn pages(&self) -> (u64, Option<u64>) {
        (self.pages.used(), self.pages.limit())
    }

    /// Inodes and what is taken of the limit by inodes, links and attributes, in whole inodes; the limit.
    pub(crate) fn inodes(&self) -> (u64, u64, Option<u64>) {
        let taken = self.inode_bytes.used().div_ceil(INODE_BYTES);
        let limit = self.inode_bytes.limit().map(|bytes| bytes / INODE_BYTES);
        (self.inodes.load(Ordering::Relaxed), taken, limit)
    }

    /// Bytes of inodes, links and attributes.
    pub(crate) fn inode_bytes(&self) -> u64 {
        self.inode_bytes.used()
    }

    /// Changes the limits.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: more is in use, or there was no limit before: as of a remount.
    pub(crate) fn set_limits(&self, limits: Limits) -> Result<(), Error> {
        let bytes = match limits.inodes {
            Some(inodes) => Some(inodes.checked_mul(INODE_BYTES).ok_or(Error::Invalid)?),
            None => None,
        };
        let pairs = [(&self.pages, limits.pages), (&self.inode_bytes, bytes)];
        for (sum, limit) in pairs {
            let retroactive = sum.limit().is_none() && limit.is_some();
            if retroactive || limit.is_some_and(|limit| sum.used() > limit) {
                return Err(Error::Invalid);
            }
        }
        for (sum, limit) in pairs {
            sum.limit.store(limit.unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        Ok(())
    }

    pub(crate) fn take_page(&self) -> Result<(), Error> {
        self.pages.take(1)
    }

    pub(crate) fn give_back_page(&self) {
        self.pages.give_back(1);
    }

    /// Takes an inode's share for one more link.
    pub(crate) fn take_link(&self) -> Result<(), Error> {
        self.inode_bytes.take(INODE_BYTES)
    }

    pub(crate) fn give_back_link(&self) {
        self.inode_bytes.give_back(INODE_BYTES);
    }

    pub(crate) fn take_attribute(&self, bytes: u64) -> Result<(), Error> {
        self.inode_bytes.take(bytes)
    }

    pub(crate) fn give_back_attribute(&self, bytes: u64) {
        self.inode_bytes.give_back(bytes);
    }
}

/// An inode's place in the counts of its file system. A regular file's belongs to its bytes: it is asked for
/// each page of them, and dropped with the last handle and mapping of these.
#[derive(Debug)]
pub struct Account(NonNull<Counts>);

// SAFETY: the counts are atomic, and live as long as an account of theirs does.
unsafe impl Send for Account {}
// SAFETY: as for `Send`.
unsafe impl Sync for Account {}

impl Account {
    /// An inode's account.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`]: the limit of inodes is reached.
    ///
    /// # Safety
    ///
    /// The counts live until [`Counts::is_last`] at least.
    pub(crate) unsafe fn new(counts: NonNull<Counts>) -> Result<Self, Error> {
        let account = Self(counts);
        let taken = account.counts().inode_bytes.take(INODE_BYTES);
        if let Err(error) = taken {
            // Nothing is to be given back.
            core::mem::forget(account);
            return Err(error);
        }
        account.counts().inodes.fetch_add(1, Ordering::Relaxed);
        // The holder exists before the file system can go: the caller has it borrowed.
        account.counts().holders.fetch_add(1, Ordering::Relaxed);
        Ok(account)
    }

    fn counts(&self) -> &Counts {
        // SAFETY: they live as long as this does (contract of `new`).
        unsafe { self.0.as_ref() }
    }

    /// A number that the accounts of one file system have, and no others at the same time.
    pub fn file_system(&self) -> usize {
        self.0.addr().get()
    }

    /// Takes pages that the file has more, in RAM or in swap.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`]: the limit is reached. None is taken.
    pub fn take_pages(&self, pages: u64) -> Result<(), Error> {
        self.counts().pages.take(pages)
    }

    /// Gives back pages that were taken.
    pub fn give_back_pages(&self, pages: u64) {
        self.counts().pages.give_back(pages);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let counts = self.counts();
        counts.inodes.fetch_sub(1, Ordering::Relaxed);
        counts.inode_bytes.give_back(INODE_BYTES);
        // Release: the last access comes before `Counts::is_last`, which acquires.
        counts.holders.fetch_sub(1, Ordering::Release);
    }
}
