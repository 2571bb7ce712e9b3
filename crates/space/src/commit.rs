//! Committed memory: the overcommit policy.

use crate::error::Error;
use quire_sync::atomic::{AtomicU64, Ordering};

/// How much memory may be committed (`vm.overcommit_memory`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overcommit {
    /// Mode 0: refuse only a single request larger than all memory.
    Guess {
        /// Pages of RAM and swap. `None` means those of the machine, with the swap that is in use at that
        /// time.
        total_pages: Option<u64>,
    },
    /// Mode 1: refuse nothing.
    Always,
    /// Mode 2: committed memory stays within `limit_pages`.
    Never {
        /// Pages that may be committed.
        limit_pages: u64,
    },
}

impl Default for Overcommit {
    fn default() -> Self {
        Self::Guess { total_pages: None }
    }
}

/// The sum of committed memory.
#[derive(Debug)]
pub struct Commit {
    policy: Overcommit,
    ram_pages: u64,
    promised: AtomicU64,
}

impl Commit {
    pub(crate) fn new(policy: Overcommit, ram_pages: u64) -> Self {
        Self { policy, ram_pages, promised: AtomicU64::new(0) }
    }

    /// Committed pages of private memory. Files count those of shared memory.
    pub fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }

    /// Whether `MAP_NORESERVE` has an effect: in strict mode it has none.
    pub(crate) fn honours_noreserve(&self) -> bool {
        !matches!(self.policy, Overcommit::Never { .. })
    }

    /// Commits `pages` more, beside the pages of shared memory that `shared` returns. `swap_pages` returns
    /// the pages of swap; it is called if RAM alone is not enough.
    pub(crate) fn charge(
        &self,
        pages: u64,
        shared: impl FnOnce() -> u64,
        swap_pages: impl FnOnce() -> u64,
    ) -> Result<(), Error> {
        // Sequentially consistent, as what files count: of two threads that charge one sees the other.
        let sum = self.promised.fetch_add(pages, Ordering::SeqCst).saturating_add(pages);
        let result = self.check(pages, || sum.saturating_add(shared()), swap_pages);
        if result.is_err() {
            self.release(pages);
        }
        result
    }

    /// The same for shared memory of `pages`, of which files count `shared` with these.
    pub(crate) fn check_shared(
        &self,
        pages: u64,
        shared: u64,
        swap_pages: impl FnOnce() -> u64,
    ) -> Result<(), Error> {
        self.check(pages, || shared.saturating_add(self.promised.load(Ordering::SeqCst)), swap_pages)
    }

    fn check(
        &self,
        pages: u64,
        sum: impl FnOnce() -> u64,
        swap_pages: impl FnOnce() -> u64,
    ) -> Result<(), Error> {
        let is_refused = match self.policy {
            Overcommit::Always => false,
            Overcommit::Guess { total_pages: Some(total) } => pages > total,
            Overcommit::Guess { total_pages: None } => {
                pages > self.ram_pages && pages > self.ram_pages.saturating_add(swap_pages())
            }
            Overcommit::Never { limit_pages } => sum() > limit_pages,
        };
        if is_refused { Err(Error::CommitLimit) } else { Ok(()) }
    }

    /// Charges `pages` more without a check: the same number is released right after.
    pub(crate) fn charge_unchecked(&self, pages: u64) {
        self.promised.fetch_add(pages, Ordering::Relaxed);
    }

    /// Releases a charge of `pages`.
    pub(crate) fn release(&self, pages: u64) {
        self.promised.fetch_sub(pages, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn guessing_refuses_only_what_exceeds_everything_at_once() {
        let commit = Commit::new(Overcommit::default(), 100);
        assert_eq!(commit.charge(100, || 0, || 0), Ok(()));
        assert_eq!(commit.charge(100, || 0, || 0), Ok(()));
        assert_eq!(commit.charge(101, || 0, || 0), Err(Error::CommitLimit));
        assert_eq!(commit.charge(101, || 0, || 1), Ok(()));
        assert_eq!(commit.charge(102, || 0, || 1), Err(Error::CommitLimit));
        assert_eq!(commit.promised(), 301);
        let commit = Commit::new(Overcommit::Guess { total_pages: Some(101) }, 100);
        assert_eq!(
            (commit.charge(101, || 0, || 0), commit.charge(102, || 0, || 9)),
            (Ok(()), Err(Error::CommitLimit))
        );
    }

    #[test]
    fn strict_mode_keeps_the_sum() {
        let commit = Commit::new(Overcommit::Never { limit_pages: 10 }, 100);
        assert_eq!(commit.charge(7, || 0, || 0), Ok(()));
        assert_eq!(commit.charge(4, || 0, || 0), Err(Error::CommitLimit));
        assert_eq!(commit.charge(1, || 3, || 0), Err(Error::CommitLimit));
        assert_eq!(commit.check_shared(3, 3, || 0), Ok(()));
        assert_eq!(commit.check_shared(3, 4, || 0), Err(Error::CommitLimit));
        commit.release(7);
        assert_eq!(commit.charge(10, || 0, || 0), Ok(()));
    }
}
