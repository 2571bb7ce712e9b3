//! The tree of memcgs: how they are created, found and removed.

use crate::Memcgs;
use crate::error::MemcgError;
use crate::id::MemcgId;
use crate::memcg::Memcg;
use crate::name::Name;
use crate::names::Names;
use crate::spare::Spare;
use arrayvec::ArrayVec;
use core::sync::atomic::AtomicU16;
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

/// Memcgs from the root to the deepest one.
pub(crate) const MAX_DEPTH: usize = 64;

/// Which memcgs there are.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// The first number that no memcg ever had, less one: the root has 0.
    pub(crate) used: u16,
    /// Numbers whose memcg is gone, linked.
    pub(crate) free: MemcgId,
    /// Memcgs that were removed and not freed yet, linked.
    pub(crate) removed: Option<(MemcgId, MemcgId)>,
    /// All that are in the tree but the root.
    pub(crate) names: Names,
}

/// A link to a memcg, or none for the root's number.
pub(crate) fn linked(link: &AtomicU16) -> Option<MemcgId> {
    let id = MemcgId::from_bits(link.load(Ordering::Relaxed));
    (!id.is_root()).then_some(id)
}

pub(crate) fn set_link(link: &AtomicU16, to: Option<MemcgId>) {
    link.store(to.map_or(0, MemcgId::get), Ordering::Relaxed);
}

impl<P: Platform> Memcgs<P> {
    /// The memcg, unless it was removed.
    pub(crate) fn online(&self, id: MemcgId) -> Result<&Memcg<P>, MemcgError> {
        self.table.get(id).filter(|memcg| memcg.life.is_online()).ok_or(MemcgError::NoMemcg)
    }

    /// Makes a memcg below `parent`.
    ///
    /// # Errors
    ///
    /// See [`MemcgError`].
    pub fn create(&self, parent: MemcgId, name: &str) -> Result<MemcgId, MemcgError> {
        Name::check(name)?;
        self.sweep();
        let pin = self.frames.platform().pin();
        let mut spare = Spare::NONE;
        let made = loop {
            let made = self.create_with(&mut self.registry.lock(), (parent, name), &mut spare);
            if let Some(made) = made.transpose() {
                break made;
            }
            // Others may take numbers meanwhile, so all is looked at again.
            if let Err(error) = self.fill_spare(&pin, &mut spare) {
                break Err(error.into());
            }
        };
        self.free_spare(&pin, &mut spare);
        made
    }

    /// The same with the memory that there is. `None` if `spare` needs more.
    fn create_with(
        &self,
        registry: &mut Registry,
        (parent, name): (MemcgId, &str),
        spare: &mut Spare<P>,
    ) -> Result<Option<MemcgId>, MemcgError> {
        let above = self.online(parent)?;
        let depth = above.links.depth.load(Ordering::Relaxed) + 1;
        if usize::from(depth) >= MAX_DEPTH {
            return Err(MemcgError::TooDeep);
        }
        if registry.names.find(&self.table, parent, name).is_some() {
            return Err(MemcgError::Exists);
        }
        let memcg = match self.table.get(registry.free).filter(|memcg| !memcg.id.is_root()) {
            Some(memcg) => {
                registry.free = MemcgId::from_bits(memcg.links.next_removed.load(Ordering::Relaxed));
                memcg.reset();
                memcg
            }
            None => {
                let id = MemcgId::new(registry.used + 1).ok_or(MemcgError::TooMany)?;
                let Some(memcg) = self.take_spare(spare, id) else { return Ok(None) };
                registry.used += 1;
                memcg
            }
        };
        memcg.name.set(name);
        let links = &memcg.links;
        links.depth.store(depth, Ordering::Relaxed);
        links.parent.store(parent.get(), Ordering::Relaxed);
        let next = linked(&above.links.first_child);
        set_link(&links.first_child, None);
        set_link(&links.prev, None);
        set_link(&links.next, next);
        if let Some(next) = next.and_then(|next| self.table.get(next)) {
            set_link(&next.links.prev, Some(memcg.id));
        }
        set_link(&above.links.first_child, Some(memcg.id));
        registry.names.add(&self.table, memcg);
        above.change_online_children(true);
        memcg.life.begin();
        Ok(Some(memcg.id))
    }

    /// Removes a memcg. What is charged to it stays charged, and its lists stay reachable from its ancestors;
    /// it is freed after the last charge is gone.
    ///
    /// # Errors
    ///
    /// [`MemcgError::Busy`] with children that were not removed, or spaces; [`MemcgError::Root`],
    /// [`MemcgError::NoMemcg`].
    pub fn remove(&self, id: MemcgId) -> Result<(), MemcgError> {
        if id.is_root() {
            return Err(MemcgError::Root);
        }
        {
            let _pin = self.frames.platform().pin();
            let mut registry = self.registry.lock();
            let memcg = self.online(id)?;
            if memcg.has_online_children() || !memcg.life.remove() {
                return Err(MemcgError::Busy);
            }
            if let Some(parent) = self.table.get(memcg.parent()) {
                parent.change_online_children(false);
            }
            // What is protected is so for all in the memcg.
            self.set_min_and_low(memcg, 0, 0);
            // What is left of it is in use elsewhere, and no limit that is gone holds there.
            memcg.lift_limits();
            self.push_removed(&mut registry, memcg);
        }
        self.sweep();
        Ok(())
    }

    /// The children of a memcg, under the lock of the memcgs.
    pub(crate) fn children<'g>(&'g self, memcg: &'g Memcg<P>) -> impl Iterator<Item = &'g Memcg<P>> {
        let mut next = linked(&memcg.links.first_child);
        core::iter::from_fn(move || {
            let child = self.table.get(next?)?;
            next = linked(&child.links.next);
            Some(child)
        })
    }

    /// The memcg at `path`: names from the root down with slashes between, and one in front or not.
    pub fn find(&self, path: &str) -> Option<MemcgId> {
        // The path is of any length. Only what can be a memcg's is looked for under the lock.
        let mut names: ArrayVec<&str, MAX_DEPTH> = ArrayVec::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            Name::check(name).ok()?;
            names.try_push(name).ok()?;
        }
        let _pin = self.frames.platform().pin();
        let registry = self.registry.lock();
        let find = |memcg, name: &str| Some(registry.names.find(&self.table, memcg, name)?.id);
        names.into_iter().try_fold(MemcgId::ROOT, find)
    }

    /// The parent, or `None` for the root and for what is no memcg.
    #[inline]
    pub fn parent(&self, id: MemcgId) -> Option<MemcgId> {
        if id.is_root() { None } else { self.table.get(id).map(Memcg::parent) }
    }

    /// The memcg and those above it, without the root, for which nothing is counted.
    #[inline]
    pub(crate) fn up(&self, id: MemcgId) -> impl Iterator<Item = &Memcg<P>> {
        let mut next = id;
        core::iter::from_fn(move || {
            if next.is_root() {
                return None;
            }
            let memcg = self.table.get(next)?;
            next = memcg.parent();
            Some(memcg)
        })
        .take(MAX_DEPTH)
    }

    /// The memcg and those above it, and the root.
    pub(crate) fn up_to_root(&self, id: MemcgId) -> impl Iterator<Item = &Memcg<P>> {
        self.up(id).chain(self.table.get(MemcgId::ROOT))
    }

    /// Whether the memcg is `above` or below it.
    #[inline]
    pub fn is_below(&self, id: MemcgId, above: MemcgId) -> bool {
        above.is_root() || self.up(id).any(|memcg| memcg.id == above)
    }

    /// The memcg after `memcg` under `root`, under the lock of the memcgs: children before siblings.
    pub(crate) fn next_locked(&self, root: &Memcg<P>, memcg: &Memcg<P>) -> Option<MemcgId> {
        if let Some(child) = linked(&memcg.links.first_child) {
            return Some(child);
        }
        let mut memcg = memcg;
        while memcg.id != root.id {
            if let Some(next) = linked(&memcg.links.next) {
                return Some(next);
            }
            memcg = self.table.get(memcg.parent())?;
        }
        None
    }

    /// The memcg after `after` in the subtree of `root`, parents before children, removed memcgs that are not
    /// gone included; the first one is `root`. If `after` is gone the walk restarts.
    pub fn next_in_subtree(&self, root: MemcgId, after: Option<MemcgId>) -> Option<MemcgId> {
        let _pin = self.frames.platform().pin();
        let _registry = self.registry.lock();
        let top = self.table.get(root).filter(|memcg| memcg.life.is_there())?;
        let Some(after) = after else { return Some(root) };
        match self.table.get(after).filter(|memcg| memcg.life.is_there() && self.is_below(after, root)) {
            Some(after) => self.next_locked(top, after),
            None => Some(root),
        }
    }

    /// Calls `visit` with every memcg in the subtree of `root`, parents before children, without a lock.
    /// Others may leave the tree meanwhile; new ones may be missed.
    pub fn for_each_in_subtree(&self, root: MemcgId, visit: impl FnMut(MemcgId)) {
        self.visit(root).for_each(visit);
    }

    /// Whether the memcg was removed. It is in the tree until its last charge is gone.
    pub fn is_removed(&self, id: MemcgId) -> bool {
        self.online(id).is_err()
    }

    /// Adds a space to the memcg, which then cannot be removed.
    ///
    /// # Errors
    ///
    /// [`MemcgError::NoMemcg`] if it was removed.
    pub fn hold(&self, id: MemcgId) -> Result<(), MemcgError> {
        if id.is_root() || self.online(id)?.life.hold() { Ok(()) } else { Err(MemcgError::NoMemcg) }
    }

    /// Undoes one [`hold`](Self::hold).
    pub fn release(&self, id: MemcgId) {
        if !id.is_root()
            && let Some(memcg) = self.table.get(id)
        {
            memcg.life.release();
        }
    }

    /// Spaces that belong to the memcg.
    pub fn spaces(&self, id: MemcgId) -> u32 {
        self.table.get(id).map_or(0, |memcg| memcg.life.spaces())
    }

    /// Puts a removed memcg at the end of the list of those that are to be checked.
    pub(crate) fn push_removed(&self, registry: &mut Registry, memcg: &Memcg<P>) {
        set_link(&memcg.links.next_removed, None);
        registry.removed = match registry.removed {
            None => Some((memcg.id, memcg.id)),
            Some((first, last)) => {
                if let Some(last) = self.table.get(last) {
                    set_link(&last.links.next_removed, Some(memcg.id));
                }
                Some((first, memcg.id))
            }
        };
    }

    /// Takes the first one off that list.
    pub(crate) fn pop_removed(&self, registry: &mut Registry) -> Option<&Memcg<P>> {
        let (first, last) = registry.removed?;
        let memcg = self.table.get(first)?;
        registry.removed = linked(&memcg.links.next_removed).map(|next| (next, last));
        Some(memcg)
    }

    /// Takes a dead memcg out of the tree, and its number is free.
    pub(crate) fn unlink(&self, registry: &mut Registry, memcg: &Memcg<P>) {
        if let Some(parent) = self.table.get(memcg.parent()) {
            memcg.min.end(&parent.min);
            memcg.low.end(&parent.low);
        }
        let (prev, next) = (linked(&memcg.links.prev), linked(&memcg.links.next));
        let before = match prev {
            Some(prev) => self.table.get(prev).map(|prev| &prev.links.next),
            None => self.table.get(memcg.parent()).map(|parent| &parent.links.first_child),
        };
        if let Some(before) = before {
            set_link(before, next);
        }
        if let Some(next) = next.and_then(|next| self.table.get(next)) {
            set_link(&next.links.prev, prev);
        }
        memcg.life.end();
        registry.names.remove(&self.table, memcg);
        memcg.links.next_removed.store(registry.free.get(), Ordering::Relaxed);
        registry.free = memcg.id;
    }
}
