//! A fault as a value: where, for what, in which mapping, and what may be mapped for it.

mod swapped;
mod zeros;

use crate::swapped_in::SwappedIn;
use core::fmt;
use quire_arch::{Access, Entry, Leaf, LeafFlags, Order, OrderSet, Platform, VirtAddr};
use quire_frame::{AllocRequest, Kind};
use quire_thp::{HugeControls, HugeUse};
use quire_vma::{SpaceCore, SwapInWindow, VmFlags, VmaSnapshot};

/// One fault: where, for what, and in which mapping.
pub struct VmFault<'f, P: Platform> {
    /// The space.
    pub space: &'f SpaceCore,
    /// The mapping.
    pub vma: &'f VmaSnapshot,
    /// The address.
    pub addr: VirtAddr,
    /// The access.
    pub access: Access,
    /// What was swapped in for it.
    pub swapped: Option<&'f SwappedIn<'f, P>>,
    /// How far the mapping's swap-ins reach.
    pub window: &'f SwapInWindow,
    /// The policy of large folios.
    pub huge: &'f HugeControls,
}

impl<P: Platform> VmFault<'_, P> {
    /// Whether it writes.
    pub(crate) fn is_write(&self) -> bool {
        self.access == Access::Write
    }

    /// Whether what it writes is private to the program.
    pub(crate) fn is_private(&self) -> bool {
        !self.vma.flags.contains(VmFlags::SHARED)
    }

    /// The attributes of a new page. They depend on the mapping and the access, not on the entry.
    pub(crate) fn kind(&self) -> Kind {
        if self.is_write() && self.is_private() { Kind::Anonymous } else { Kind::File }
    }

    /// Whether the access to a page that was never there needs new memory. In a mapping of an open file it
    /// gets a page of the file's cache, or a copy of it.
    #[inline]
    pub(crate) fn needs_first_folio(&self) -> bool {
        self.is_write() || !self.vma.backing.is_anonymous()
    }

    /// Whether the access to a page in this state needs new memory.
    #[inline]
    pub(crate) fn needs_folio(&self, entry: Entry) -> bool {
        let is_special = |leaf: Leaf| leaf.flags.contains(LeafFlags::SPECIAL);
        matches!(entry, Entry::Leaf(leaf) if self.is_write() && is_special(leaf))
    }

    /// The permissions that the entry gets. More is allowed than before, so stale translations are harmless:
    /// they fault and find this entry. On a read, a page not known to be exclusive stays write-protected.
    pub(crate) fn allowed(&self) -> LeafFlags {
        if self.is_write() {
            return self.vma.flags.leaf_flags() | LeafFlags::DIRTY;
        }
        let allowed = self.vma.leaf_flags();
        if self.is_private() { allowed - LeafFlags::WRITE } else { allowed }
    }

    /// The orders that a new folio for it may have, besides order 0.
    #[inline]
    pub(crate) fn orders(&self) -> OrderSet {
        if !self.huge.any_size(self.vma.flags) { OrderSet::EMPTY } else { self.large_orders() }
    }

    #[cold]
    fn large_orders(&self) -> OrderSet {
        if !self.is_private() || !self.vma.backing.is_anonymous() {
            return OrderSet::EMPTY;
        }
        let policy = self.huge.policy();
        let orders = policy.orders(HugeUse::Fault, self.vma.flags, self.space.huge_disable.load());
        if orders.is_empty() { orders } else { orders.around(self.addr, self.vma.range) }
    }

    /// A request for a new large folio, with the effort that the policy allows.
    pub(crate) fn large_request(&self, order: Order) -> AllocRequest {
        let request = AllocRequest::anonymous().kind(Kind::Anonymous).order(order);
        let effort = self.huge.policy().fault_effort(self.vma.flags);
        if effort.may_drain() { request } else { request.without_drain() }
    }
}

impl<P: Platform> fmt::Debug for VmFault<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmFault")
            .field("addr", &self.addr)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
