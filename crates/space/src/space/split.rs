//! Splitting a folio that a program maps.

use super::Space;
use crate::cow::hold;
use quire_arch::{Entry, LeafFlags, Level, Order, PagingFormat, Pfn, Platform, VirtAddr};
use quire_frame::SplitError;
use quire_pagetable::{Found, Tables};

impl<P: Platform> Space<'_, P> {
    /// Splits the large folio that is mapped at `addr`, mapped as it is, into folios of order `to`. Pages of
    /// it that are not mapped are freed; returns how many. Programs notice nothing.
    ///
    /// # Errors
    ///
    /// [`SplitError`]; then the folio is unchanged, but PMD leaves that map it may have been split into
    /// tables.
    #[doc(hidden)]
    pub fn split_folio(&self, addr: VirtAddr, to: Order) -> Result<u64, SplitError> {
        let head = self.hold_mapped(addr).ok_or(SplitError::NotAnonymous)?;
        let result = self.spaces.thp().split_held(head, to, false);
        self.spaces.memcgs().folios().release_folio(head);
        result
    }

    /// Takes a reference to the folio of private memory that is mapped at `addr`, and returns its first
    /// frame.
    fn hold_mapped(&self, addr: VirtAddr) -> Option<Pfn> {
        // Above lies the kernel's half of the root, which is not walked here.
        if addr >= P::Paging::USER_END {
            return None;
        }
        let _guard = self.core().mmap_lock.read(self.spaces.platform());
        let tables = self.tables();
        let pin = self.spaces.platform().pin();
        let held = match tables.lookup(addr) {
            Found::Nothing => return None,
            Found::Table(table) => {
                let locked = tables.lock(&pin, table, Level::PTE);
                match locked.get(P::Paging::index(addr, Level::PTE)) {
                    Entry::Leaf(leaf) if !leaf.flags.contains(LeafFlags::SPECIAL) => hold(&tables, leaf.pfn)?,
                    _ => return None,
                }
            }
            Found::Huge(slot) => {
                let locked = tables.lock_slot(&pin, slot);
                let leaf = Tables::huge_leaf(&locked, slot)?;
                if leaf.flags.contains(LeafFlags::SPECIAL) {
                    return None;
                }
                hold(&tables, leaf.pfn)?
            }
        };
        Some(held.head())
    }
}
