//! Retrying calls after reclaim.

use super::Space;
use crate::error::Error;
use crate::spaces::FIRST_RECLAIM;
use quire_arch::Platform;
use quire_frame::AllocError;

/// Attempts of a call. The last one follows a reclaim of [`FIRST_RECLAIM`] times 2^14 pages, 2 GiB.
const CALL_ATTEMPTS: u32 = 16;

impl<P: Platform> Space<'_, P> {
    /// Makes a call, and retries it after reclaim while it fails for lack of frames and reclaim frees some.
    ///
    /// `call` takes and drops its locks, and undoes what it did when it fails: the caller holds no lock and
    /// is not pinned, and each attempt starts afresh. A failure that the fault plan injects is not a
    /// shortage.
    #[inline]
    pub(crate) fn with_reclaim<R>(&self, mut call: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
        let mut attempt = 1;
        loop {
            let error = match call() {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            let is_shortage = error == Error::NoFrames(AllocError::OutOfMemory);
            let wanted = FIRST_RECLAIM << (attempt - 1);
            if !is_shortage
                || attempt == CALL_ATTEMPTS
                || self.is_killed()
                || !self.spaces.reclaim_for_call(wanted)
            {
                return Err(error);
            }
            attempt += 1;
        }
    }
}
