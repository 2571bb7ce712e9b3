//! Shared memory that is swapped out: its page comes back to the cache of its file, and is mapped there.

use super::FileFault;
use crate::error::{Refusal, Swapped};
use crate::swap_in::SwapIn;
use core::ops::Deref;
use quire_arch::{Order, Platform};
use quire_file::{KeptFolio, Lent, LockedFolio, SwappedPage, SwappedPages};
use quire_frame::{AllocRequest, Kind, OwnerWord};
use quire_memcg::MemcgId;

/// A locked folio that came back.
pub(super) enum CameBack<'s, P: Platform> {
    /// It was swapped in by this fault, which has it locked.
    Lent(Lent<'s, P>),
    /// It was zeros, or is a copy.
    Own(LockedFolio<'s, P>),
}

impl<P: Platform> CameBack<'_, P> {
    /// Unlocks it, if the fault is not to. It is in the cache of its file.
    pub(super) fn unlock_cached(self) {
        if let Self::Own(folio) = self {
            folio.unlock_cached();
        }
    }
}

impl<'s, P: Platform> Deref for CameBack<'s, P> {
    type Target = LockedFolio<'s, P>;

    fn deref(&self) -> &LockedFolio<'s, P> {
        match self {
            Self::Lent(folio) => folio,
            Self::Own(folio) => folio,
        }
    }
}

impl<'a, 's: 'a, P: Platform> FileFault<'a, 's, '_, P> {
    /// Brings `page` back that is swapped out: as the fault has swapped it in before, or as zeros. The caller
    /// looks at the size of the file after this.
    ///
    /// # Errors
    ///
    /// It is to be swapped in first, or memory is short.
    pub(super) fn bring_back(&self, page: SwappedPage) -> Result<CameBack<'a, P>, Refusal> {
        let Self { tables, fault, file, .. } = *self;
        if let Some(came) = fault.swapped {
            if let Some(folio) = came.give_to(file, page)? {
                return Ok(CameBack::Lent(folio));
            }
            let swap_in = SwapIn::new(tables.memory(), &fault.space.tables.membership);
            if let Some(folio) = swap_in.give_copy(came, file, page)? {
                return Ok(CameBack::Own(folio));
            }
        }
        match self.zeros(page) {
            Some(folio) => Ok(CameBack::Own(folio)),
            None => Err(Refusal::Swapped(Swapped::of_shmem(page))),
        }
    }

    /// A page of zeros needs no read, and no other thread waits for it: see `vm_fault/zeros.rs`.
    fn zeros(&self, page: SwappedPage) -> Option<LockedFolio<'s, P>> {
        let Self { tables, pin, fault, file } = *self;
        let memory = tables.memory();
        if page.order > Order::ZERO || fault.swapped.is_some() || fault.space.is_killed() {
            return None;
        }
        let seen = MemcgId::from_bits(memory.swap().cache().zeros(pin, page.slot)?);
        let head = memory.frames().allocate(pin, AllocRequest::anonymous().kind(Kind::Shmem)).ok()?;
        let frame = memory.frames().known(head);
        frame.as_folio().set_owner(OwnerWord::NONE);
        frame.as_folio().set_maps(0);
        let swap_in = SwapIn::new(memory, &fault.space.tables.membership);
        let Ok(memcgs) = swap_in.charge_for_slot(pin, (page.slot, seen), Order::ZERO) else {
            memory.memcgs().folios().release_unused(pin, head, Order::ZERO);
            return None;
        };
        frame.as_folio().set_memcg(memcgs.charged.get());
        let Some(guard) = memory.frames().folios().try_lock_folio(head) else {
            memory.memcgs().folios().release_unused(pin, head, Order::ZERO);
            return None;
        };
        // It is in no larger piece, so no nodes are needed.
        let of_slot = memcgs.of_slot.get();
        let adopted = SwappedPages::of(file).adopt_zeros((pin, memory.swap()), page, (head, guard), of_slot);
        let (folio, shadow) = adopted.ok().flatten()?;
        swap_in.note_zeros(pin, head, shadow);
        KeptFolio::new(file, head).cull(memory.memcgs(), pin);
        Some(folio)
    }
}
