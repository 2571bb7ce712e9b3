//! How memcgs are made, removed and freed.

mod spare;
mod sweep;

use crate::error::MemcgError;
use crate::id::MemcgId;
use crate::name::Name;
use crate::tree::{MAX_DEPTH, MemcgTree, Registry, linked, set_link};
use quire_arch::Platform;
use quire_sync::atomic::Ordering;
use spare::Spare;

quire_arch::part_of! {
    /// Makes and removes memcgs.
    pub struct MemcgLifecycle { pub(crate) tree: MemcgTree }
}

impl<P: Platform> MemcgLifecycle<'_, P> {
    /// Makes a memcg below `parent`.
    ///
    /// # Errors
    ///
    /// See [`MemcgError`].
    pub fn create(self, parent: MemcgId, name: &str) -> Result<MemcgId, MemcgError> {
        Name::check(name)?;
        self.sweep();
        let pin = self.tree.frames.platform().pin();
        let mut spare = Spare::NONE;
        let made = loop {
            let made = self.create_with(&mut self.tree.registry.lock(), (parent, name), &mut spare);
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
        self,
        registry: &mut Registry,
        (parent, name): (MemcgId, &str),
        spare: &mut Spare<P>,
    ) -> Result<Option<MemcgId>, MemcgError> {
        let above = self.tree.online(parent)?;
        let depth = above.links.depth.load(Ordering::Relaxed) + 1;
        if usize::from(depth) >= MAX_DEPTH {
            return Err(MemcgError::TooDeep);
        }
        if registry.names.find(&self.tree.table, parent, name).is_some() {
            return Err(MemcgError::Exists);
        }
        let memcg = match self.tree.table.get(registry.free).filter(|memcg| !memcg.id.is_root()) {
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
        if let Some(next) = next.and_then(|next| self.tree.table.get(next)) {
            set_link(&next.links.prev, Some(memcg.id));
        }
        set_link(&above.links.first_child, Some(memcg.id));
        registry.names.add(&self.tree.table, memcg);
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
    pub fn remove(self, id: MemcgId) -> Result<(), MemcgError> {
        if id.is_root() {
            return Err(MemcgError::Root);
        }
        {
            let _pin = self.tree.frames.platform().pin();
            let mut registry = self.tree.registry.lock();
            let memcg = self.tree.online(id)?;
            if memcg.has_online_children() || !memcg.life.remove() {
                return Err(MemcgError::Busy);
            }
            if let Some(parent) = self.tree.table.get(memcg.parent()) {
                parent.change_online_children(false);
            }
            // What is protected is so for all in the memcg.
            self.tree.set_min_and_low(memcg, 0, 0);
            // What is left of it is in use elsewhere, and no limit that is gone holds there.
            memcg.lift_limits();
            self.tree.push_removed(&mut registry, memcg);
            registry.removals = registry.removals.saturating_add(1);
        }
        self.sweep();
        Ok(())
    }
}
