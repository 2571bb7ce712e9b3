//! A memcg that is allocated before the lock of the memcgs is taken: an allocation drains the lists of all
//! CPUs.

use super::MemcgLifecycle;
use crate::id::MemcgId;
use crate::lists::NodeLists;
use crate::memcg::Memcg;
use crate::tree::SITE;
use core::ptr::NonNull;
use quire_arch::{MAX_NODES, Order, Pfn, Pin, Platform};
use quire_frame::{AllocError, AllocRequest, Kind};

/// Memory for a memcg of which nothing knows yet.
pub(crate) struct Spare<P: Platform> {
    memcg: Option<NonNull<Memcg<P>>>,
    /// A page of the table.
    leaf: Option<Pfn>,
    wants_leaf: bool,
}

impl<P: Platform> Spare<P> {
    pub(crate) const NONE: Self = Self { memcg: None, leaf: None, wants_leaf: false };
}

impl<'g, P: Platform> MemcgLifecycle<'g, P> {
    /// Allocates what is missing in `spare`. Not under the lock of the memcgs.
    pub(crate) fn fill_spare(self, pin: &Pin<'_, P>, spare: &mut Spare<P>) -> Result<(), AllocError> {
        if spare.memcg.is_none() {
            spare.memcg = Some(self.allocate_memcg(pin)?);
        }
        if spare.wants_leaf && spare.leaf.is_none() {
            let request = AllocRequest::new(Order::ZERO, SITE).kind(Kind::Memcg).zeroed();
            spare.leaf = Some(self.tree.frames().allocate(pin, request)?);
        }
        Ok(())
    }

    /// The first memcg.
    pub(crate) fn make_root(self) -> Result<(), AllocError> {
        let pin = self.tree.frames().platform().pin();
        let mut spare = Spare { wants_leaf: true, ..Spare::NONE };
        let made = self.fill_spare(&pin, &mut spare);
        if let Some(root) = self.take_spare(&mut spare, MemcgId::ROOT) {
            root.life.begin();
        }
        self.free_spare(&pin, &mut spare);
        made
    }

    fn allocate_memcg(self, pin: &Pin<'_, P>) -> Result<NonNull<Memcg<P>>, AllocError> {
        let frames = self.tree.frames();
        let mut nodes = [None; MAX_NODES];
        let made = (|| {
            for place in nodes.iter_mut().take(frames.platform().node_count()) {
                *place = Some(self.tree.lists.allocate(frames, pin, NodeLists::new())?);
            }
            // SAFETY: the lists are freed with the memcg only, or where none was made.
            self.tree.memcgs.allocate(frames, pin, unsafe { Memcg::new(MemcgId::ROOT, &nodes) })
        })();
        made.inspect_err(|_| self.free_lists(pin, nodes.into_iter().flatten()))
    }

    fn free_lists(self, pin: &Pin<'_, P>, lists: impl Iterator<Item = NonNull<NodeLists<P>>>) {
        for lists in lists {
            // SAFETY: allocated in `allocate_memcg`, and no memcg leads to them any more.
            unsafe { self.tree.lists.free(self.tree.frames(), pin, lists) };
        }
    }

    /// Gives the memcg of `spare` the number `id`, which none ever had. `None` if more memory is needed for
    /// it. Called under the lock of the memcgs, or before others know of them.
    pub(crate) fn take_spare(self, spare: &mut Spare<P>, id: MemcgId) -> Option<&'g Memcg<P>> {
        let mut memcg = spare.memcg?;
        if !self.tree.table.has_leaf(id) {
            spare.wants_leaf = true;
            let page = spare.leaf.take()?;
            // SAFETY: a zeroed page that was allocated for this, and is never freed from now on.
            unsafe { self.tree.table.add_leaf(id, self.tree.frames().platform().direct_map(page)) };
        }
        spare.memcg = None;
        // SAFETY: nothing else knows of the memcg yet.
        unsafe { memcg.as_mut() }.id = id;
        // SAFETY: the memcg is never freed from now on.
        unsafe { self.tree.table.put(id, memcg) };
        self.tree.table.get(id)
    }

    /// Frees what was not taken. Not under the lock of the memcgs.
    pub(crate) fn free_spare(self, pin: &Pin<'_, P>, spare: &mut Spare<P>) {
        if let Some(memcg) = spare.memcg.take() {
            // SAFETY: nothing else knows of the memcg.
            let nodes: [_; MAX_NODES] = unsafe { memcg.as_ref() }.node_pointers();
            // SAFETY: allocated in `allocate_memcg`, and nothing else knows of it.
            unsafe { self.tree.memcgs.free(self.tree.frames(), pin, memcg) };
            self.free_lists(pin, nodes.into_iter().flatten());
        }
        if let Some(leaf) = spare.leaf.take() {
            let freed = self.tree.frames().free(pin, leaf, Order::ZERO);
            debug_assert!(freed.is_ok(), "its own page can be freed: {freed:?}");
        }
    }
}
