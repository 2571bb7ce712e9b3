//! Errors of writeback, so that each opening of a file learns of each once (Linux's `errseq_t`).
//!
//! A word holds the last error, a count of errors, and whether any opening has seen the last one. An error
//! that none has seen is not counted again: the next reader learns of it anyhow, and no reader can tell one
//! from two. A new opening begins with what has been seen, so it learns of an error that no other has seen.

use crate::backing::FileError;
use quire_sync::atomic::raw::{AtomicU64, Ordering};

const ERROR: u64 = 0xff;
const SEEN: u64 = 1 << 8;
const ONE: u64 = 1 << 9;

/// What an opening has seen of the errors of its file.
#[derive(Debug, Default)]
pub(crate) struct Cursor(AtomicU64);

/// The errors of a file.
#[derive(Debug, Default)]
pub(crate) struct ErrorSequence(AtomicU64);

impl ErrorSequence {
    /// One more error.
    pub(crate) fn add(&self, error: FileError) {
        let next = |word: u64| {
            let count = if word & SEEN != 0 { ONE } else { 0 };
            Some(((word & !(ERROR | SEEN)) | error as u64).wrapping_add(count))
        };
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
    }

    /// What a new opening begins with: an error that none has seen is still to be reported.
    pub(crate) fn sample(&self) -> Cursor {
        let word = self.0.load(Ordering::Acquire);
        Cursor(AtomicU64::new(if word & SEEN != 0 { word } else { 0 }))
    }

    /// The error that came last, if the opening has not seen it. From now on it has.
    pub(crate) fn report(&self, cursor: &Cursor) -> Result<(), FileError> {
        if self.0.load(Ordering::Acquire) == cursor.0.load(Ordering::Relaxed) {
            return Ok(());
        }
        // An error that comes after this exchange is counted, as the one before it was seen.
        let now = self.0.fetch_or(SEEN, Ordering::AcqRel) | SEEN;
        if cursor.0.swap(now, Ordering::Relaxed) == now {
            return Ok(());
        }
        FileError::from_number(now & ERROR).map_or(Ok(()), Err)
    }

    /// The last error, if no opening has seen it.
    pub(crate) fn unseen(&self) -> Option<FileError> {
        let word = self.0.load(Ordering::Acquire);
        if word & SEEN != 0 { None } else { FileError::from_number(word & ERROR) }
    }

    /// The last error, seen or not.
    pub(crate) fn last(&self) -> Option<FileError> {
        FileError::from_number(self.0.load(Ordering::Acquire) & ERROR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opening_learns_of_an_error_once() {
        let errors = ErrorSequence::default();
        let (first, second) = (errors.sample(), errors.sample());
        assert_eq!(errors.report(&first), Ok(()));
        errors.add(FileError::NoSpace);
        assert_eq!(errors.report(&first), Err(FileError::NoSpace));
        assert_eq!(errors.report(&first), Ok(()));
        errors.add(FileError::NoSpace);
        assert_eq!(errors.report(&first), Err(FileError::NoSpace), "the same error again is another one");
        assert_eq!(errors.report(&second), Err(FileError::NoSpace));
        assert_eq!((errors.report(&first), errors.report(&second)), (Ok(()), Ok(())));
    }

    #[test]
    fn the_next_opening_learns_of_an_error_that_none_has_seen() {
        let errors = ErrorSequence::default();
        errors.add(FileError::Io);
        assert_eq!(errors.unseen(), Some(FileError::Io));
        let late = errors.sample();
        assert_eq!(errors.report(&late), Err(FileError::Io));
        assert_eq!(errors.unseen(), None);
        let later = errors.sample();
        assert_eq!(errors.report(&later), Ok(()));
    }
}
