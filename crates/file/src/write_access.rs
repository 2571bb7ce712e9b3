//! Who has a file open for writing (Linux's `i_writecount`), and the folios that it may have only as long as
//! no one has (`nr_thps`).
//!
//! A folio of the PMD's order of a file whose backing takes no such folios must never become dirty. So one is
//! made only while the file is open for writing nowhere, and who opens it for writing removes those that are
//! there. Each writes its own word, and then reads the other's: one of the two finds the other.

use crate::error::PageError;
use quire_arch::Access;
use quire_sync::atomic::{AtomicU64, Ordering, fence};

/// The openings of a file that matter to those who write to it, and what it has only without such openings.
#[derive(Debug, Default)]
pub(crate) struct WriteAccess {
    /// A number with a sign. Openings for writing; below zero those for execution, beside which there are
    /// none.
    openings: AtomicU64,
    /// Folios that the file may have only while it is open for writing nowhere.
    large: AtomicU64,
}

impl WriteAccess {
    /// Counts an opening for such an access.
    ///
    /// # Errors
    ///
    /// [`PageError::TextBusy`]: it is for writing, and others are for execution; or the other way round.
    pub(crate) fn begin(&self, access: Access) -> Result<(), PageError> {
        let counted = match access {
            Access::Read => return Ok(()),
            Access::Write => self.change(|openings| (openings >= 0).then_some(openings + 1)),
            Access::Execute => self.change(|openings| (openings <= 0).then_some(openings - 1)),
        };
        if !counted {
            return Err(PageError::TextBusy);
        }
        // Pairs with that of `begin_large`.
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn change(&self, new: impl Fn(i64) -> Option<i64>) -> bool {
        let new = |openings: u64| new(openings.cast_signed()).map(i64::cast_unsigned);
        self.openings.fetch_update(Ordering::Relaxed, Ordering::Relaxed, new).is_ok()
    }

    /// An opening for such an access is closed.
    pub(crate) fn end(&self, access: Access) {
        let by = match access {
            Access::Read => return,
            Access::Write => -1_i64,
            Access::Execute => 1,
        };
        // Release: pairs with the load in `is_written`. Who finds no writer finds what the last one wrote.
        self.openings.fetch_add(by.cast_unsigned(), Ordering::Release);
    }

    /// Counts a writer without an opening, until the result is dropped.
    ///
    /// # Errors
    ///
    /// [`PageError::TextBusy`].
    pub(crate) fn write(&self) -> Result<Writing<'_>, PageError> {
        self.begin(Access::Write)?;
        Ok(Writing(self))
    }

    /// Whether the file is open for writing, at a moment.
    pub(crate) fn is_written(&self) -> bool {
        self.openings.load(Ordering::Acquire).cast_signed() > 0
    }

    /// Counts `folios` that are about to come, unless the file is open for writing: then it changes nothing,
    /// and returns false. Invalidate is held exclusively until they are in the cache.
    pub(crate) fn begin_large(&self, folios: u64) -> bool {
        self.large.fetch_add(folios, Ordering::Relaxed);
        // Pairs with that of `begin`: this finds the opening, or who opens the file finds the folios, and
        // waits for Invalidate to remove them.
        fence(Ordering::SeqCst);
        let is_written = self.is_written();
        if is_written {
            self.large.fetch_sub(folios, Ordering::Relaxed);
        }
        !is_written
    }

    /// A folio has left the cache.
    pub(crate) fn end_large(&self) {
        // Release: pairs with the load in `large`. Who finds none does not find it in the store.
        self.large.fetch_sub(1, Ordering::Release);
    }

    /// How many such folios there are, at a moment.
    #[inline]
    pub(crate) fn large(&self) -> u64 {
        self.large.load(Ordering::Acquire)
    }
}

/// A file is written to without an opening for that (Linux's `get_write_access`): none can be opened for
/// execution meanwhile.
#[derive(Debug)]
#[must_use = "the file counts no writer any more when this is dropped"]
pub struct Writing<'f>(&'f WriteAccess);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.end(Access::Write);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_writer_without_an_opening_counts_as_one() {
        let access = WriteAccess::default();
        let writing = access.write().expect("nothing is open for execution");
        assert_eq!((access.is_written(), access.begin(Access::Execute)), (true, Err(PageError::TextBusy)));
        drop(writing);
        assert_eq!((access.is_written(), access.begin(Access::Execute)), (false, Ok(())));
        assert_eq!(access.write().err(), Some(PageError::TextBusy));
        access.end(Access::Execute);
        assert!(access.write().is_ok());
    }

    #[test]
    fn openings_for_writing_and_for_execution_exclude_each_other() {
        let access = WriteAccess::default();
        assert_eq!(access.begin(Access::Read), Ok(()));
        for (one, other) in [(Access::Write, Access::Execute), (Access::Execute, Access::Write)] {
            (0..2).for_each(|_| assert_eq!(access.begin(one), Ok(())));
            assert_eq!(access.is_written(), one == Access::Write);
            access.end(one);
            assert_eq!(access.begin(other), Err(PageError::TextBusy), "one is left");
            assert_eq!(access.begin(Access::Read), Ok(()));
            access.end(one);
        }
        access.end(Access::Read);
        assert!(!access.is_written());
    }

    #[test]
    fn folios_come_only_without_a_writer() {
        let access = WriteAccess::default();
        assert!(access.begin_large(1));
        assert_eq!(access.begin(Access::Write), Ok(()));
        assert!(!access.begin_large(1));
        assert_eq!(access.large(), 1, "the one from before");
        access.end_large();
        access.end(Access::Write);
        assert!(access.begin_large(1));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    /// A file gets such a folio, or is opened for writing by one who does not know of it; never both.
    #[test]
    fn loom_an_opening_for_writing_against_a_collapse() {
        loom::model(|| {
            let access = Arc::new(WriteAccess::default());
            let opener = {
                let access = access.clone();
                thread::spawn(move || {
                    access.begin(Access::Write).expect("nothing is open for execution");
                    access.large() > 0
                })
            };
            let came = {
                let access = access.clone();
                thread::spawn(move || access.begin_large(1))
            };
            let (removes, came) = (opener.join().expect("it ended"), came.join().expect("it ended"));
            assert!(removes || !came, "the folio stays in a file that is written to");
        });
    }

    /// Who opens a file for writing, and finds no folio, does not find one in the store.
    #[test]
    fn loom_an_opening_for_writing_against_a_removal() {
        loom::model(|| {
            let access = Arc::new(WriteAccess::default());
            assert!(access.begin_large(1));
            let stored = Arc::new(AtomicU64::new(1));
            let remover = {
                let (access, stored) = (access.clone(), stored.clone());
                thread::spawn(move || {
                    stored.store(0, Ordering::Relaxed);
                    access.end_large();
                })
            };
            let opener = thread::spawn(move || {
                access.begin(Access::Write).expect("nothing is open for execution");
                if access.large() == 0 {
                    assert_eq!(stored.load(Ordering::Relaxed), 0);
                }
            });
            [remover, opener].map(|thread| thread.join().expect("it ended"));
        });
    }
}
