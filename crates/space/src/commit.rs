//! Committed memory: the overcommit policy.

use crate::error::Error;
use quire_file::Committed;

/// How much memory may be committed (`vm.overcommit_memory`). Of shared memory without a promise, as of
/// memfds and files of a tmpfs, each page counts when it comes: beyond the limit of mode 2 there is no space
/// for it.
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

impl Overcommit {
    /// Pages that may be committed, where the sum of all counts.
    pub(crate) const fn limit(self) -> Option<u64> {
        match self {
            Self::Never { limit_pages } => Some(limit_pages),
            Self::Guess { .. } | Self::Always => None,
        }
    }
}

impl Default for Overcommit {
    fn default() -> Self {
        Self::Guess { total_pages: None }
    }
}

/// The sum of committed memory, and how much it may be.
#[derive(Clone, Copy, Debug)]
pub struct Commit<'s> {
    policy: Overcommit,
    ram_pages: u64,
    committed: &'s Committed,
}

impl<'s> Commit<'s> {
    pub(crate) const fn new(policy: Overcommit, ram_pages: u64, committed: &'s Committed) -> Self {
        Self { policy, ram_pages, committed }
    }

    /// Committed pages of private memory. Files count those of shared memory.
    pub fn promised(self) -> u64 {
        self.committed.private()
    }

    /// Whether `MAP_NORESERVE` has an effect: in strict mode it has none.
    pub(crate) fn honours_noreserve(self) -> bool {
        !matches!(self.policy, Overcommit::Never { .. })
    }

    /// Commits `pages` more of private memory. `swap_pages` returns the pages of swap; it is called if RAM
    /// alone is not enough.
    pub(crate) fn charge(self, pages: u64, swap_pages: impl FnOnce() -> u64) -> Result<(), Error> {
        let sum = self.committed.add_private(pages);
        self.check((pages, sum), swap_pages).inspect_err(|_| self.release(pages))
    }

    /// The same of shared memory, all of which is promised.
    pub(crate) fn charge_shared(self, pages: u64, swap_pages: impl FnOnce() -> u64) -> Result<(), Error> {
        let sum = self.committed.add_shared(pages);
        self.check((pages, sum), swap_pages).inspect_err(|_| self.committed.drop_shared(pages))
    }

    fn check(self, (pages, sum): (u64, u64), swap_pages: impl FnOnce() -> u64) -> Result<(), Error> {
        let is_refused = match self.policy {
            Overcommit::Always => false,
            Overcommit::Guess { total_pages: Some(total) } => pages > total,
            Overcommit::Guess { total_pages: None } => {
                pages > self.ram_pages && pages > self.ram_pages.saturating_add(swap_pages())
            }
            Overcommit::Never { limit_pages } => sum > limit_pages,
        };
        if is_refused { Err(Error::CommitLimit) } else { Ok(()) }
    }

    /// Charges `pages` more without a check: the same number is released right after.
    pub(crate) fn charge_unchecked(self, pages: u64) {
        let _ = self.committed.add_private(pages);
    }

    /// Releases a charge of `pages`.
    pub(crate) fn release(self, pages: u64) {
        self.committed.drop_private(pages);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn guessing_refuses_only_what_exceeds_everything_at_once() {
        let committed = Committed::new();
        let commit = Commit::new(Overcommit::default(), 100, &committed);
        assert_eq!(commit.charge(100, || 0), Ok(()));
        assert_eq!(commit.charge(100, || 0), Ok(()));
        assert_eq!(commit.charge(101, || 0), Err(Error::CommitLimit));
        assert_eq!(commit.charge(101, || 1), Ok(()));
        assert_eq!(commit.charge(102, || 1), Err(Error::CommitLimit));
        assert_eq!(commit.promised(), 301);
        let commit = Commit::new(Overcommit::Guess { total_pages: Some(101) }, 100, &committed);
        assert_eq!((commit.charge(101, || 0), commit.charge(102, || 9)), (Ok(()), Err(Error::CommitLimit)));
    }

    #[test]
    fn strict_mode_keeps_the_sum() {
        let committed = Committed::new();
        let commit = Commit::new(Overcommit::Never { limit_pages: 10 }, 100, &committed);
        assert_eq!(commit.charge(7, || 0), Ok(()));
        assert_eq!(commit.charge(4, || 0), Err(Error::CommitLimit));
        assert_eq!(commit.charge_shared(3, || 0), Ok(()));
        assert_eq!(commit.charge(1, || 0), Err(Error::CommitLimit));
        assert_eq!(commit.charge_shared(1, || 0), Err(Error::CommitLimit));
        commit.release(7);
        assert_eq!((committed.private(), committed.shared()), (0, 3));
        assert_eq!(commit.charge(7, || 0), Ok(()));
    }
}
