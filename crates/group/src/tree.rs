//! The tree of groups: how they come, are found, and are removed.

use crate::error::GroupError;
use crate::group::Group;
use crate::id::GroupId;
use crate::lists::NodeLists;
use crate::name::Name;
use crate::{Groups, SITE};
use core::sync::atomic::AtomicU16;
use quire_arch::{MAX_NODES, Order, Pin, Platform};
use quire_frame::{AllocError, AllocRequest, Kind};
use quire_sync::SpinGuard;
use quire_sync::atomic::Ordering;

/// Groups from the root to the deepest one.
pub(crate) const MAX_DEPTH: usize = 64;

/// Which groups there are.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// The first number that no group ever had, less one: the root has 0.
    pub(crate) used: u16,
    /// Numbers whose group is gone, linked.
    pub(crate) free: GroupId,
    /// Groups that were removed and are not gone, linked.
    pub(crate) removed: Option<(GroupId, GroupId)>,
    /// Walks over the tree that go on: no group leaves it meanwhile.
    pub(crate) walks: u32,
}

/// A link to a group, or none for the root's number.
pub(crate) fn linked(link: &AtomicU16) -> Option<GroupId> {
    let id = GroupId::from_bits(link.load(Ordering::Relaxed));
    (!id.is_root()).then_some(id)
}

pub(crate) fn set_link(link: &AtomicU16, to: Option<GroupId>) {
    link.store(to.map_or(0, GroupId::get), Ordering::Relaxed);
}

/// Keeps groups from leaving the tree while somebody walks over it.
struct Walk<'g, P: Platform>(&'g Groups<P>);

impl<P: Platform> Drop for Walk<'_, P> {
    fn drop(&mut self) {
        let _pin = self.0.frames.platform().pin();
        self.0.registry.lock().walks -= 1;
    }
}

impl<P: Platform> Groups<P> {
    /// The group, unless it was removed.
    pub(crate) fn online(&self, id: GroupId) -> Result<&Group<P>, GroupError> {
        self.table.get(id).filter(|group| group.life.is_online()).ok_or(GroupError::NoGroup)
    }

    /// Makes the memory of a group of a number that none had before.
    pub(crate) fn make_group(&self, pin: &Pin<'_, P>, id: GroupId) -> Result<&Group<P>, AllocError> {
        let frames = &self.frames;
        if !self.table.has_leaf(id) {
            let page = frames
                .allocate(pin, AllocRequest::new(Order::ZERO, SITE).kind(Kind::MemoryGroup).zeroed())?;
            // SAFETY: a page of zeros that was just given out, and is never given back.
            unsafe { self.table.add_leaf(id, frames.platform().direct_map(page)) };
        }
        let mut nodes = [None; MAX_NODES];
        let made = (|| {
            for place in nodes.iter_mut().take(frames.platform().node_count()) {
                *place = Some(self.lists.allocate(frames, pin, NodeLists::new())?);
            }
            // SAFETY: the lists are never freed, unless the group does not come to be.
            self.groups.allocate(frames, pin, unsafe { Group::new(id, &nodes) })
        })();
        match made {
            Ok(group) => {
                // SAFETY: the group is never freed.
                unsafe { self.table.put(id, group) };
                // SAFETY: as before; only shared references are made of it.
                Ok(unsafe { group.as_ref() })
            }
            Err(error) => {
                for lists in nodes.into_iter().flatten() {
                    // SAFETY: allocated above, and no group leads to them.
                    unsafe { self.lists.free(frames, pin, lists) };
                }
                Err(error)
            }
        }
    }

    /// Makes a group below `parent`.
    ///
    /// # Errors
    ///
    /// See [`GroupError`].
    pub fn create(&self, parent: GroupId, name: &str) -> Result<GroupId, GroupError> {
        Name::check(name)?;
        let pin = self.frames.platform().pin();
        let mut registry = self.registry.lock();
        self.sweep_locked(&pin, &mut registry);
        let above = self.online(parent)?;
        let depth = above.links.depth.load(Ordering::Relaxed) + 1;
        if usize::from(depth) >= MAX_DEPTH {
            return Err(GroupError::TooDeep);
        }
        if self.child(above, name).is_some() {
            return Err(GroupError::Exists);
        }
        let group = match self.table.get(registry.free).filter(|group| !group.id.is_root()) {
            Some(group) => {
                registry.free = GroupId::from_bits(group.links.next_removed.load(Ordering::Relaxed));
                group.reset();
                group
            }
            None => {
                let id = GroupId::new(registry.used + 1).ok_or(GroupError::TooMany)?;
                let group = self.make_group(&pin, id)?;
                registry.used += 1;
                group
            }
        };
        group.name.set(name);
        let links = &group.links;
        links.depth.store(depth, Ordering::Relaxed);
        links.parent.store(parent.get(), Ordering::Relaxed);
        let next = linked(&above.links.first_child);
        set_link(&links.first_child, None);
        set_link(&links.prev, None);
        set_link(&links.next, next);
        if let Some(next) = next.and_then(|next| self.table.get(next)) {
            set_link(&next.links.prev, Some(group.id));
        }
        set_link(&above.links.first_child, Some(group.id));
        group.life.begin();
        Ok(group.id)
    }

    /// Removes a group. What is still charged to it stays so, and its lists stay reachable from above; it is gone when the
    /// last charge is.
    ///
    /// # Errors
    ///
    /// [`GroupError::Busy`] with children that were not removed, or spaces; [`GroupError::Root`],
    /// [`GroupError::NoGroup`].
    pub fn remove(&self, id: GroupId) -> Result<(), GroupError> {
        if id.is_root() {
            return Err(GroupError::Root);
        }
        let pin = self.frames.platform().pin();
        let mut registry = self.registry.lock();
        let group = self.online(id)?;
        if self.children(group).any(|child| child.life.is_online()) || !group.life.remove() {
            return Err(GroupError::Busy);
        }
        // What is protected is so for whoever is in the group.
        self.set_min_and_low(group, 0, 0);
        self.push_removed(&mut registry, group);
        self.sweep_locked(&pin, &mut registry);
        Ok(())
    }

    /// The children of a group, under the lock of the groups.
    pub(crate) fn children<'g>(&'g self, group: &'g Group<P>) -> impl Iterator<Item = &'g Group<P>> {
        let mut next = linked(&group.links.first_child);
        core::iter::from_fn(move || {
            let child = self.table.get(next?)?;
            next = linked(&child.links.next);
            Some(child)
        })
    }

    fn child<'g>(&'g self, group: &'g Group<P>, name: &str) -> Option<&'g Group<P>> {
        self.children(group).find(|child| child.life.is_online() && child.name.is(name))
    }

    /// The group at `path`: names from the root down with slashes between, and one in front or not.
    pub fn find(&self, path: &str) -> Option<GroupId> {
        let _pin = self.frames.platform().pin();
        let _registry = self.registry.lock();
        let mut group = self.table.get(GroupId::ROOT)?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            group = self.child(group, name)?;
        }
        Some(group.id)
    }

    /// The parent, or `None` for the root and for what is no group.
    #[inline]
    pub fn parent(&self, id: GroupId) -> Option<GroupId> {
        if id.is_root() { None } else { self.table.get(id).map(Group::parent) }
    }

    /// The group and those above it, without the root, for which nothing is counted.
    #[inline]
    pub(crate) fn up(&self, id: GroupId) -> impl Iterator<Item = &Group<P>> {
        let mut next = id;
        core::iter::from_fn(move || {
            if next.is_root() {
                return None;
            }
            let group = self.table.get(next)?;
            next = group.parent();
            Some(group)
        })
        .take(MAX_DEPTH)
    }

    /// Whether the group is `above` or below it.
    #[inline]
    pub fn is_below(&self, id: GroupId, above: GroupId) -> bool {
        above.is_root() || self.up(id).any(|group| group.id == above)
    }

    /// What comes after `group` under `root`, under the lock of the groups: children before siblings.
    fn next_locked(&self, root: &Group<P>, group: &Group<P>) -> Option<GroupId> {
        if let Some(child) = linked(&group.links.first_child) {
            return Some(child);
        }
        let mut group = group;
        while group.id != root.id {
            if let Some(next) = linked(&group.links.next) {
                return Some(next);
            }
            group = self.table.get(group.parent())?;
        }
        None
    }

    /// The group after `after` in the subtree of `root`, parents before children, removed groups that are not gone
    /// included; the first one is `root`. If `after` is not there any more the walk begins anew.
    pub fn next_in_subtree(&self, root: GroupId, after: Option<GroupId>) -> Option<GroupId> {
        let _pin = self.frames.platform().pin();
        let _registry = self.registry.lock();
        let top = self.table.get(root).filter(|group| group.life.is_there())?;
        let Some(after) = after else { return Some(root) };
        match self.table.get(after).filter(|group| group.life.is_there() && self.is_below(after, root)) {
            Some(after) => self.next_locked(top, after),
            None => Some(root),
        }
    }

    /// The next group under `root` in a round that all who reclaim there share: nobody begins at the first group each time.
    pub fn next_round(&self, root: GroupId) -> GroupId {
        let Some(top) = self.table.get(root) else { return GroupId::ROOT };
        let after = GroupId::from_bits(top.cursor.load(Ordering::Relaxed));
        let next = self.next_in_subtree(root, Some(after)).unwrap_or(root);
        top.cursor.store(next.get(), Ordering::Relaxed);
        next
    }

    /// Calls `visit` with every group in the subtree of `root`, parents before children, without a lock. No group leaves
    /// the tree meanwhile; of those that come, some may be missed.
    pub fn for_each_in_subtree(&self, root: GroupId, mut visit: impl FnMut(GroupId)) {
        let walk = {
            let _pin = self.frames.platform().pin();
            self.registry.lock().walks += 1;
            Walk(self)
        };
        let mut next = self.next_in_subtree(root, None);
        while let Some(id) = next {
            visit(id);
            next = self.next_in_subtree(root, Some(id));
        }
        drop(walk);
    }

    /// Notes that a space belongs to the group, which then cannot be removed.
    ///
    /// # Errors
    ///
    /// [`GroupError::NoGroup`] if it was removed.
    pub fn hold(&self, id: GroupId) -> Result<(), GroupError> {
        if id.is_root() || self.online(id)?.life.hold() { Ok(()) } else { Err(GroupError::NoGroup) }
    }

    /// Undoes one [`hold`](Self::hold).
    pub fn release(&self, id: GroupId) {
        if !id.is_root()
            && let Some(group) = self.table.get(id)
        {
            group.life.release();
        }
    }

    /// Spaces that belong to the group.
    pub fn spaces(&self, id: GroupId) -> u32 {
        self.table.get(id).map_or(0, |group| group.life.spaces())
    }

    fn push_removed(&self, registry: &mut Registry, group: &Group<P>) {
        set_link(&group.links.next_removed, None);
        registry.removed = match registry.removed {
            None => Some((group.id, group.id)),
            Some((first, last)) => {
                if let Some(last) = self.table.get(last) {
                    set_link(&last.links.next_removed, Some(group.id));
                }
                Some((first, group.id))
            }
        };
    }

    fn pop_removed(&self, registry: &mut Registry) -> Option<&Group<P>> {
        let (first, last) = registry.removed?;
        let group = self.table.get(first)?;
        registry.removed = linked(&group.links.next_removed).map(|next| (next, last));
        Some(group)
    }

    /// Looks at a few of the removed groups, each in its turn, and lets go of those that nothing belongs to any more.
    pub(crate) fn sweep_locked(&self, pin: &Pin<'_, P>, registry: &mut SpinGuard<'_, Registry, P>) {
        /// Groups that are looked at in one hold of the lock.
        const MOST: usize = 16;
        let end = registry.removed.map(|(_, last)| last);
        for _ in 0..MOST {
            let Some(group) = self.pop_removed(registry) else { return };
            if self.is_over(pin, group) && registry.walks == 0 {
                self.unlink(group);
                group.links.next_removed.store(registry.free.get(), Ordering::Relaxed);
                registry.free = group.id;
            } else {
                self.push_removed(registry, group);
            }
            if Some(group.id) == end {
                return;
            }
        }
    }

    /// Takes a group that is over out of the tree.
    fn unlink(&self, group: &Group<P>) {
        self.fold(group);
        let (prev, next) = (linked(&group.links.prev), linked(&group.links.next));
        let before = match prev {
            Some(prev) => self.table.get(prev).map(|prev| &prev.links.next),
            None => self.table.get(group.parent()).map(|parent| &parent.links.first_child),
        };
        if let Some(before) = before {
            set_link(before, next);
        }
        if let Some(next) = next.and_then(|next| self.table.get(next)) {
            set_link(&next.links.prev, prev);
        }
        group.life.end();
    }
}
