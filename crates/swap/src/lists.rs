//! A device's lists of clusters.

use crate::cluster::{Cluster, Links, NONE};
use quire_arch::Order;
use quire_sync::atomic::Ordering;

/// Lists of clusters with free blocks of an order: up to the one below a cluster's own, of which there is one
/// block only.
const ORDERS: usize = Order::PMD.index();

/// A list that a cluster can be on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ListId {
    /// No slot is in use, and there is no table.
    Free,
    /// As `Free`, but not discarded yet.
    Discard,
    /// No slot is free.
    Full,
    /// Slots are free, but no block of the cluster's order.
    Frag,
    /// Some CPU allocates from it: on no list.
    Taken,
    /// A thread discards it: on no list, and no CPU allocates from it.
    Discarding,
    /// There probably is a free block of this order.
    Nonfull(Order),
}

impl ListId {
    pub(crate) const COUNT: usize = 6 + ORDERS;

    #[inline]
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Free => 0,
            Self::Discard => 1,
            Self::Full => 2,
            Self::Frag => 3,
            Self::Taken => 4,
            Self::Discarding => 5,
            Self::Nonfull(order) => 6 + order.get(),
        }
    }

    #[inline]
    pub(crate) const fn of(number: u8) -> Self {
        match number {
            0 => Self::Free,
            1 => Self::Discard,
            2 => Self::Full,
            3 => Self::Frag,
            4 => Self::Taken,
            5 => Self::Discarding,
            _ => match Order::new(number - 6) {
                Some(order) => Self::Nonfull(order),
                None => Self::Taken,
            },
        }
    }

    /// Whether it is a list at all: if not, only the thread that took the cluster puts it on one.
    #[inline]
    pub(crate) const fn is_list(self) -> bool {
        !matches!(self, Self::Taken | Self::Discarding)
    }
}

/// A doubly linked list of clusters, by index.
#[derive(Debug)]
pub(crate) struct ClusterList {
    first: u32,
    last: u32,
    clusters: u32,
}

impl ClusterList {
    const EMPTY: Self = Self { first: NONE, last: NONE, clusters: 0 };

    pub(crate) fn first(&self) -> Option<u32> {
        if self.first == NONE { None } else { Some(self.first) }
    }

    pub(crate) fn clusters(&self) -> u32 {
        self.clusters
    }

    fn push<'c>(&mut self, index: u32, links: impl Fn(u32) -> &'c Links) {
        links(index).prev.store(self.last, Ordering::Relaxed);
        links(index).next.store(NONE, Ordering::Relaxed);
        match self.last {
            NONE => self.first = index,
            last => links(last).next.store(index, Ordering::Relaxed),
        }
        self.last = index;
        self.clusters += 1;
    }

    fn remove<'c>(&mut self, index: u32, links: impl Fn(u32) -> &'c Links) {
        let (prev, next) =
            (links(index).prev.load(Ordering::Relaxed), links(index).next.load(Ordering::Relaxed));
        match prev {
            NONE => self.first = next,
            prev => links(prev).next.store(next, Ordering::Relaxed),
        }
        match next {
            NONE => self.last = prev,
            next => links(next).prev.store(prev, Ordering::Relaxed),
        }
        self.clusters -= 1;
    }
}

/// The lists, behind a lock of class `SwapLists`.
#[derive(Debug)]
pub(crate) struct Lists {
    by_id: [ClusterList; ListId::COUNT],
    /// Clusters that hold nothing but shadows, if the technique keeps them listed.
    pub(crate) only_shadows: ClusterList,
}

impl Lists {
    pub(crate) const fn new() -> Self {
        Self { by_id: [const { ClusterList::EMPTY }; ListId::COUNT], only_shadows: ClusterList::EMPTY }
    }

    pub(crate) fn list(&self, id: ListId) -> &ClusterList {
        &self.by_id[usize::from(id.number())]
    }

    /// Puts a cluster that is on no list to the end of one.
    pub(crate) fn put<'c>(&mut self, cluster: impl Fn(u32) -> &'c Cluster, index: u32, id: ListId) {
        cluster(index).set_list(id.number());
        if id.is_list() {
            self.by_id[usize::from(id.number())].push(index, |index| &cluster(index).links);
        }
    }

    /// Takes the cluster off the list that it is on.
    pub(crate) fn take<'c>(&mut self, cluster: impl Fn(u32) -> &'c Cluster, index: u32) {
        let id = ListId::of(cluster(index).list());
        if id.is_list() {
            self.by_id[usize::from(id.number())].remove(index, |index| &cluster(index).links);
        }
        cluster(index).set_list(ListId::Taken.number());
    }

    /// Takes the first cluster off a list.
    pub(crate) fn pop<'c>(&mut self, cluster: impl Fn(u32) -> &'c Cluster, id: ListId) -> Option<u32> {
        let index = self.list(id).first()?;
        self.take(cluster, index);
        Some(index)
    }

    /// Takes the first cluster off the list of those to be discarded, for the caller to discard it. It does
    /// not look like one that a CPU allocates from: a CPU that had it before may still try to.
    pub(crate) fn pop_to_discard<'c>(&mut self, cluster: impl Fn(u32) -> &'c Cluster) -> Option<u32> {
        let index = self.pop(&cluster, ListId::Discard)?;
        cluster(index).set_list(ListId::Discarding.number());
        Some(index)
    }

    /// Sets whether the cluster holds nothing but shadows.
    pub(crate) fn note_shadows<'c>(&mut self, cluster: impl Fn(u32) -> &'c Cluster, index: u32, only: bool) {
        let links = |index| &cluster(index).shadow_links;
        match (cluster(index).is_listed_for_shadows(), only) {
            (false, true) => self.only_shadows.push(index, links),
            (true, false) => self.only_shadows.remove(index, links),
            _ => return,
        }
        cluster(index).set_listed_for_shadows(only);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_has_a_number_of_its_own() {
        for number in 0..ListId::COUNT as u8 {
            assert_eq!(ListId::of(number).number(), number);
        }
    }
}
