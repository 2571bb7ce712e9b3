//! The space that a call is made on.

use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use crate::spaces::{CALL_ATTEMPTS, SeenReclaims, Spaces};
use quire_arch::Platform;
use quire_fault::Faults;
use quire_file::ClosingStack;
use quire_frame::AllocError;
use quire_pagetable::Tables;
use quire_vma::{Rights, SpaceCore, Vma};

/// The space that a call is made on, which a handle keeps, and what its caller may do there.
pub(crate) struct Caller<'s, P: Platform> {
    pub(crate) spaces: &'s Spaces<P>,
    pub(crate) core: &'s SpaceCore,
    pub(crate) rights: Rights,
    /// Whether calls bring in what they lock or map.
    pub(crate) populates: bool,
    /// Where open files go that lose their last holder.
    pub(crate) closing: &'s ClosingStack<Vma>,
}

// Not derived: that would ask for a platform that can be copied.
impl<P: Platform> Clone for Caller<'_, P> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Caller<'_, P> {}

impl<'s, P: Platform> Caller<'s, P> {
    #[inline]
    pub(crate) fn tables(self) -> Tables<'s, P> {
        Tables::new(self.spaces.memory(), &self.core.tables)
    }

    #[inline]
    pub(crate) fn faults(self) -> Faults<'s, P> {
        Faults::new(self.spaces.thp(), self.core)
    }

    /// Takes the mmap lock for a call, with its caller's rights.
    #[inline]
    pub(crate) fn writer(self) -> MmapWriter<'s, P> {
        MmapWriter::begin_with((self.spaces, self.core), self.rights, self.closing)
    }
}

impl<P: Platform> Caller<'_, P> {
    /// As [`retry_with_reclaim`], unless the program was killed.
    #[inline]
    pub(crate) fn with_reclaim<R>(self, call: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
        retry_with_reclaim(self.spaces, || self.core.is_killed(), call)
    }

    /// Makes a call of several steps, turn by turn, for a caller that holds the mmap lock and no
    /// [`Unmapper`](quire_pagetable::Unmapper), of which a turn has its own. `turn` goes on behind the steps
    /// that are done, and returns how many these are. A step is work that no later turn finds to be done, of
    /// which a call has finitely many: as each has all attempts, the call would not end otherwise.
    ///
    /// Fails if no step is done: then the lock may be dropped, and the call made again. Else other threads
    /// could have seen the steps by then, and have done what a second attempt would undo. So it succeeds with
    /// the result of the call; if memory is short it is freed with the lock held, as Linux does.
    #[inline]
    pub(crate) fn in_turns<R>(
        self,
        mut turn: impl FnMut() -> (Result<R, Error>, u64),
    ) -> Result<Result<R, Error>, Error> {
        let (mut done, mut failed, mut since) = (0, 0, None);
        loop {
            match turn() {
                (Err(error), 0) => return Err(error),
                (Err(error), steps) => {
                    // Each step has all attempts.
                    failed = if steps > done { 0 } else { failed };
                    done = steps;
                    if !reclaimed_after(self.spaces, error, (failed, &mut since), &|| self.core.is_killed()) {
                        return Ok(Err(error));
                    }
                    failed += 1;
                }
                (result, _) => return Ok(result),
            }
        }
    }
}

/// Makes a call, and retries it after reclaim while it fails for lack of frames, whatever the program is told
/// then, and reclaim frees some, unless `gives_up` by then.
///
/// `call` takes and drops its locks, and undoes what it did when it fails: the caller holds no lock and is
/// not pinned, and each attempt starts afresh. A failure that the fail plan injects is not a shortage.
#[inline]
pub(crate) fn retry_with_reclaim<P: Platform, R>(
    spaces: &Spaces<P>,
    gives_up: impl Fn() -> bool,
    mut call: impl FnMut() -> Result<R, Error>,
) -> Result<R, Error> {
    let (mut failed, mut since) = (0, None);
    loop {
        match call() {
            Ok(result) => return Ok(result),
            Err(error) if !reclaimed_after(spaces, error, (failed, &mut since), &gives_up) => {
                return Err(error);
            }
            Err(_) => failed += 1,
        }
    }
}

/// Whether a call that failed with `error`, after `failed` attempts before, is to be made again. `since` is
/// for [`reclaim_for_call`](crate::spaces::DirectReclaim::reclaim_for_call).
#[cold]
fn reclaimed_after<P: Platform>(
    spaces: &Spaces<P>,
    error: Error,
    (failed, since): (u32, &mut Option<SeenReclaims>),
    gives_up: &dyn Fn() -> bool,
) -> bool {
    let (Error::NoFrames(cause) | Error::TryAgain(cause)) = error else { return false };
    cause == AllocError::OutOfMemory
        && failed + 1 < CALL_ATTEMPTS
        && !gives_up()
        && spaces.direct_reclaim().reclaim_for_call(failed, since, gives_up)
}
