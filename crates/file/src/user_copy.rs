//! The program's side of a call that reads or writes a file.

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A program's memory as the source or the target of a call, with a position in it.
///
/// It is copied without faults, with a folio locked that may be the one that a fault would need: the program
/// may read a file into a mapping of the same page. What is missing is made accessible with nothing locked,
/// and that page is tried again. A write to shared memory is tried before anything was made accessible.
pub trait UserCopy {
    /// Bytes from the position to the end.
    fn left(&self) -> u64;

    /// Makes the next `bytes` bytes accessible, and returns how many are, from the position on: 0 if the
    /// program may not access the first of them. May sleep; nothing is locked. What it returns may be copied
    /// in several parts, without another call.
    fn fault_in(&mut self, bytes: usize) -> usize;

    /// Copies bytes from the position on, to or from the page, until a byte would fault, and returns how
    /// many. The position stays. A folio is locked, so this neither faults nor sleeps. It may come without a
    /// [`fault_in`](Self::fault_in) before it: of addresses that no program may have it copies nothing.
    fn copy(&mut self, page: PageBytes<'_>) -> usize;

    /// Moves the position on by `bytes`.
    fn advance(&mut self, bytes: usize);
}

/// Bytes of a page of a file.
///
/// Programs that map the page may change it at the same time: they expect that.
pub struct PageBytes<'a> {
    start: NonNull<u8>,
    len: usize,
    /// Whether they are the target.
    is_target: bool,
    page: PhantomData<&'a u8>,
}

impl PageBytes<'_> {
    /// `len` bytes from `start` on.
    ///
    /// # Safety
    ///
    /// They are valid for reads, and if they are the target for writes, as long as this lives. No reference
    /// leads to them.
    pub(crate) const unsafe fn new(start: NonNull<u8>, len: usize, is_target: bool) -> Self {
        Self { start, len, is_target, page: PhantomData }
    }

    /// How many they are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[doc(hidden)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether they are the target of the call, which writes to the file.
    pub const fn is_target(&self) -> bool {
        self.is_target
    }

    /// Where the first one is, for code that copies them itself: to write only if they are the target.
    pub const fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Copies from the byte `at` on to `to`, as far as there are so many, and returns how many.
    pub fn get(&self, at: usize, to: &mut [u8]) -> usize {
        let bytes = to.len().min(self.len.saturating_sub(at));
        if bytes > 0 {
            // SAFETY: `at..at + bytes` is below `len`, so the source is valid (contract of `new`). `to` is no
            // part of it: no reference leads there.
            unsafe { to.as_mut_ptr().copy_from_nonoverlapping(self.start.as_ptr().add(at), bytes) };
        }
        bytes
    }

    /// Copies `from` to the bytes from `at` on, as far as there are so many, and returns how many: none if
    /// they are not the target.
    pub fn set(&self, at: usize, from: &[u8]) -> usize {
        let bytes = if self.is_target { from.len().min(self.len.saturating_sub(at)) } else { 0 };
        if bytes > 0 {
            // SAFETY: as in `get`; they are the target, and valid for writes.
            unsafe { self.start.as_ptr().add(at).copy_from_nonoverlapping(from.as_ptr(), bytes) };
        }
        bytes
    }
}

impl fmt::Debug for PageBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageBytes").field("len", &self.len).finish_non_exhaustive()
    }
}
