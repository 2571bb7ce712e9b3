//! A page of shared memory that came with a large folio.

use super::SwapIn;
use crate::error::{Need, SwapInError};
use crate::swapped_in::SwappedIn;
use quire_arch::{Order, Platform};
use quire_file::{CachedFile, KeptFolio, LockedFolio, SwappedPage, SwappedPages};
use quire_memcg::MemcgId;

impl<'s, P: Platform> SwapIn<'s, '_, P> {
    /// Puts a copy of the page into the cache of its file, if `came` is a large folio: private memory had its
    /// slots when they were to be read, and its other pages may be in use. `None` if the file does not have
    /// the slot any more. Waits for nothing.
    ///
    /// # Errors
    ///
    /// What is short.
    #[cold]
    pub fn give_copy(
        self,
        came: &SwappedIn<'s, P>,
        file: &CachedFile<P>,
        page: SwappedPage,
    ) -> Result<Option<LockedFolio<'s, P>>, SwapInError> {
        let (frames, memcgs) = (self.memory.frames(), self.memory.memcgs());
        let is_large = came.order > Order::ZERO && came.guard.is_some();
        let Some(nth) = came.page_of(page.slot).filter(|_| is_large) else { return Ok(None) };
        let seen = MemcgId::from_bits(self.memory.swap().counts().memcg_of(page.slot));
        let (head, _) = self
            .try_swap_folio(Order::ZERO, (page.slot, seen), false)
            .map_err(|(cause, need)| SwapInError::Short(cause, need))?;
        let Some(guard) = frames.folios().try_lock_folio(head) else {
            memcgs.folios().release_folio(head);
            return Ok(None);
        };
        // SAFETY: the copy is new and this thread's. `came` holds the folio, whose page was read and is
        // mapped by no program: none has had its slot since.
        unsafe { frames.platform().copy_user(came.head.offset(nth), head, Order::ZERO) };
        let names_gone = || came.names_gone(page.slot, 1);
        let adopted = SwappedPages::of(file)
            .adopt_copy(memcgs, page, (head, guard), names_gone)
            .map_err(|cause| SwapInError::Short(cause, Need::Frames(Order::ZERO)))?;
        if adopted.is_some() {
            let pin = frames.platform().pin();
            self.note_wanted(&pin, head, None);
            KeptFolio::new(file, head).cull(memcgs, &pin);
        }
        Ok(adopted)
    }
}
