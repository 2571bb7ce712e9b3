//! Open files that have lost their last holder, a mapping.

use super::Spaces;
use quire_arch::Platform;
use quire_file::ClosingStack;
use quire_vma::Vma;

/// Those that one call leaves. When this is dropped they are closed, and those that reclaim has left: the
/// call holds nothing then.
pub(crate) struct UnusedFiles<'s, P: Platform> {
    spaces: &'s Spaces<P>,
    stack: ClosingStack<Vma>,
}

impl<'s, P: Platform> UnusedFiles<'s, P> {
    /// None yet.
    #[inline]
    pub(crate) fn new(spaces: &'s Spaces<P>) -> Self {
        Self { spaces, stack: ClosingStack::new() }
    }

    /// Where the call puts them.
    #[inline]
    pub(crate) fn stack(&self) -> &ClosingStack<Vma> {
        &self.stack
    }
}

impl<P: Platform> Drop for UnusedFiles<'_, P> {
    #[inline]
    fn drop(&mut self) {
        close_all(self.spaces, &self.stack);
        self.spaces.close_unused_files();
    }
}

/// Closes these open files of the machine. The caller holds no lock and is not pinned; may sleep.
#[inline]
pub(super) fn close_all<P: Platform>(spaces: &Spaces<P>, closing: &ClosingStack<Vma>) {
    if !closing.is_empty() {
        for opening in closing.take() {
            // SAFETY: VMAs name openings of this machine's files only, and these have no holder any more.
            unsafe { spaces.page_cache().close(opening) };
        }
    }
}
