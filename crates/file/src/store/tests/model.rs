//! The store against a map of pages.

use super::support::{Cpu, Nodes};
use crate::store::{Filter, FolioStore, InsertError, LockedStore, Tag};
use crate::{Entry, IndexRange, PageIndex, Payload, Stored};
use proptest::prelude::*;
use quire_arch::{Order, Pfn, Platform};
use std::collections::BTreeMap;
use std::vec::Vec;

/// An entry of the model: what is stored, and its tags.
type Known = (Stored, [bool; 3]);

/// The store, its nodes, and each page that has an entry.
struct Both {
    store: FolioStore<Cpu>,
    nodes: Nodes,
    /// By first page.
    pages: BTreeMap<u64, Known>,
}

#[derive(Clone, Debug)]
enum Step {
    Insert { page: u64, order: u8, kind: u8 },
    Remove { page: u64 },
    Replace { page: u64, kind: u8 },
    Split { page: u64, order: u8 },
    Merge { page: u64, order: u8, kind: u8 },
    Mark { page: u64, tag: usize, on: bool },
    Look { page: u64, pages: u64 },
    DropShadows { limit: u64 },
}

fn index(page: u64) -> PageIndex {
    PageIndex::new(page).unwrap()
}

fn entry(kind: u8, page: u64) -> Entry {
    match kind % 3 {
        0 => Entry::Folio(Pfn(page + 7)),
        1 => Entry::Shadow(Payload::new(page & 0xffff).unwrap()),
        _ => Entry::Slot(Payload::new(page + 1).unwrap()),
    }
}

impl Both {
    fn new() -> Self {
        Self { store: FolioStore::new(), nodes: Nodes::new(1), pages: BTreeMap::new() }
    }

    fn locked(&self) -> LockedStore<'_, Cpu, Nodes> {
        // SAFETY: all changes of the store use these nodes.
        unsafe { self.store.lock(&self.nodes) }
    }

    /// What the model has at a page.
    fn at(&self, page: u64) -> Option<Known> {
        let (_, known) = self.pages.range(..=page).next_back()?;
        known.0.range().contains(index(page)).then_some(*known)
    }

    fn overlapping(&self, range: IndexRange) -> Vec<Known> {
        if range.start() == range.end() {
            return Vec::new();
        }
        let before = self.at(range.start()).filter(|known| known.0.start.get() < range.start());
        let inside = self.pages.range(range.start()..range.end()).map(|(_, known)| *known);
        before.into_iter().chain(inside).collect()
    }

    fn insert(&mut self, page: u64, order: u8, kind: u8) {
        let order = Order::new(order).unwrap();
        let start = index(page).block_start(order);
        let new = Stored { start, order, entry: entry(kind, start.get()) };
        let mut reserve = self.nodes.reserve();
        let result = loop {
            let result = self.locked().insert(new, &mut reserve);
            match result {
                Err(InsertError::NeedsNodes(needs)) => reserve.fill(needs).unwrap(),
                result => break result,
            }
        };
        let there = self.overlapping(new.range());
        if let Some(first) = there.iter().find(|known| !known.0.entry.is_shadow()) {
            assert_eq!(result, Err(InsertError::Occupied(first.0)));
            return;
        }
        let shadow = result.unwrap();
        let shadows: Vec<_> = there.iter().map(|known| known.0.entry).collect();
        assert_eq!(shadow.is_some(), !shadows.is_empty());
        assert!(shadow.is_none_or(|shadow| shadows.contains(&Entry::Shadow(shadow))));
        for (old, tags) in there {
            self.pages.remove(&old.start.get());
            // What of a larger shadow is elsewhere stays, in the halves that a buddy allocator makes.
            let mut rest = old;
            while let Some(half) = rest.order.smaller().filter(|half| *half >= order) {
                let kept = start.block_start(half).get();
                let other = kept ^ half.pages();
                self.pages
                    .insert(other, (Stored { start: index(other), order: half, entry: old.entry }, tags));
                rest = Stored { start: index(kept), order: half, ..rest };
            }
        }
        self.pages.insert(start.get(), (new, [false; 3]));
    }

    fn split(&mut self, page: u64, order: u8) {
        let order = Order::new(order).unwrap();
        let mut reserve = self.nodes.reserve();
        let found = loop {
            let found = self.locked().split(index(page), order, &mut reserve);
            match found {
                Err(InsertError::NeedsNodes(needs)) => reserve.fill(needs).unwrap(),
                found => break found.unwrap(),
            }
        };
        let known = self.at(page);
        assert_eq!(found, known.map(|known| known.0));
        let Some((old, tags)) = known.filter(|known| known.0.order > order) else { return };
        for part in 0..old.order.pages() / order.pages() {
            let pages = part * order.pages();
            let start = index(old.start.get() + pages);
            self.pages.insert(start.get(), (Stored { start, order, entry: old.entry.part(pages) }, tags));
        }
    }

    fn merge(&mut self, page: u64, order: u8, kind: u8) {
        let order = Order::new(order).unwrap();
        let start = index(page).block_start(order);
        let new = Stored { start, order, entry: entry(kind, start.get()) };
        let there = self.overlapping(new.range());
        let is_smaller = there.first().is_some_and(|known| known.0.order < order);
        assert_eq!(self.locked().merge(new), is_smaller);
        if is_smaller {
            for (old, _) in there {
                self.pages.remove(&old.start.get());
            }
            self.pages.insert(start.get(), (new, [false; 3]));
        }
    }

    fn mark(&mut self, page: u64, tag: usize, on: bool) {
        let known = self.at(page).filter(|known| !known.0.entry.is_shadow());
        let mut locked = self.locked();
        let change = if on { LockedStore::set_tag } else { LockedStore::clear_tag };
        let done = change(&mut locked, index(page), Tag::ALL[tag]);
        drop(locked);
        assert_eq!(done, known.is_some());
        if let Some((stored, mut tags)) = known {
            tags[tag] = on;
            self.pages.insert(stored.start.get(), (stored, tags));
        }
    }

    fn look(&self, range: IndexRange) {
        let machine = Cpu(0);
        let pin = machine.pin();
        let guard = self.nodes.epoch.enter(&pin);
        for page in [range.start(), range.start() + 1, range.end().saturating_sub(1)] {
            let Some(at) = PageIndex::new(page) else { continue };
            let wanted = self.at(page).map(|known| known.0);
            // SAFETY: the nodes are retired through this epoch.
            let found = unsafe { self.store.find(at, &guard) };
            assert!(found.as_ref().is_none_or(crate::Found::is_current));
            assert_eq!(found.map(|found| found.stored()), wanted, "page {page:#x}");
            assert_eq!(self.locked().get(at), wanted, "page {page:#x}");
        }
        let there = self.overlapping(range);
        let locked = self.locked();
        let few = IndexRange::new(range.start(), range.end().min(range.start() + 32));
        let first = PageIndex::new(few.start()).unwrap_or(PageIndex::MAX);
        // SAFETY: as above.
        let [bits, odd] =
            [u32::MAX, 0x5555_5555].map(|wanted| unsafe { self.store.folio_bits(first, wanted, &guard) });
        assert_eq!(odd, bits & 0x5555_5555);
        for page in few.start()..few.end() {
            let stored = locked.get(PageIndex::new(page).unwrap());
            let is_folio = stored.is_some_and(|stored| matches!(stored.entry, Entry::Folio(_)));
            assert_eq!(bits >> (page - few.start()) & 1 != 0, is_folio, "page {page:#x} of {few:?}");
        }
        let all = locked.batch::<8>(range, Filter::All);
        assert!(all.iter().eq(there.iter().map(|known| &known.0).take(8)), "{range:?}: {all:?}");
        for tag in Tag::ALL {
            let tagged = locked.batch::<8>(range, Filter::Tagged(tag));
            let wanted = there.iter().filter(|known| known.1[tag as usize]).map(|known| &known.0);
            assert!(tagged.iter().eq(wanted.take(8)), "{range:?}, {tag:?}: {tagged:?}");
            assert_eq!(locked.any_tagged(tag), self.pages.values().any(|known| known.1[tag as usize]));
        }
    }

    fn drop_shadows(&mut self, limit: u64) {
        let before = self.locked().figures();
        let went = self.locked().drop_shadow_nodes(limit);
        let after = self.locked().figures();
        assert_eq!(after.nodes + went, before.nodes);
        assert!(went >= limit.min(before.shadow_nodes));
        assert_eq!((after.cached_pages, after.swapped_pages), (before.cached_pages, before.swapped_pages));
        // Which of them went is the store's business; nothing else did.
        let mut left = BTreeMap::new();
        self.locked().audit(&mut |wrong| panic!("{wrong}"), &mut |stored, tags| {
            left.insert(stored.start.get(), (*stored, tags));
        });
        for (page, known) in &self.pages {
            assert!(left.get(page) == Some(known) || known.0.entry.is_shadow());
        }
        assert!(left.iter().all(|(page, known)| self.pages.get(page) == Some(known)));
        self.pages = left;
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Insert { page, order, kind } => self.insert(page, order, kind),
            Step::Remove { page } => {
                let known = self.at(page);
                assert_eq!(self.locked().remove(index(page)), known.map(|known| known.0));
                if let Some((stored, _)) = known {
                    self.pages.remove(&stored.start.get());
                }
            }
            Step::Replace { page, kind } => {
                let known = self.at(page);
                let start = known.map_or(0, |known| known.0.start.get());
                let entry = entry(kind, start + 3);
                assert_eq!(self.locked().replace(index(page), entry), Ok(known.map(|known| known.0)));
                if let Some((stored, tags)) = known {
                    let tags = if entry.is_shadow() { [false; 3] } else { tags };
                    self.pages.insert(start, (Stored { entry, ..stored }, tags));
                }
            }
            Step::Split { page, order } => self.split(page, order),
            Step::Merge { page, order, kind } => self.merge(page, order, kind),
            Step::Mark { page, tag, on } => self.mark(page, tag, on),
            Step::Look { page, pages } => self.look(IndexRange::new(page, page + pages)),
            Step::DropShadows { limit } => self.drop_shadows(limit),
        }
        self.check();
    }

    fn check(&self) {
        let mut found = Vec::new();
        let locked = self.locked();
        locked.audit(&mut |wrong| panic!("{wrong}"), &mut |stored, tags| found.push((*stored, tags)));
        assert!(found.iter().eq(self.pages.values()), "{found:?}\n{:?}", self.pages);
        let pages = |is: fn(&Entry) -> bool| -> u64 {
            self.pages.values().filter(|known| is(&known.0.entry)).map(|known| known.0.order.pages()).sum()
        };
        let figures = locked.figures();
        assert_eq!(figures.cached_pages, pages(|entry| matches!(entry, Entry::Folio(_))));
        assert_eq!(figures.swapped_pages, pages(|entry| matches!(entry, Entry::Slot(_))));
        assert_eq!(figures.nodes as usize, self.nodes.out.get());
    }

    fn clear(&mut self) {
        while let Some((&page, _)) = self.pages.iter().next_back() {
            self.step(&Step::Remove { page });
        }
        assert_eq!(self.nodes.out.get(), 0);
    }
}

fn page() -> impl Strategy<Value = u64> {
    // Near the beginning, at the edges of the levels, and anywhere.
    let edges = [6, 9, 15, 21, 27, 33, 39, 45].map(|shift| 1u64 << shift);
    let last = PageIndex::MAX.get();
    let near_an_edge = (proptest::sample::select(edges.to_vec()), 0u64..1200)
        .prop_map(|(edge, by)| (edge + by).saturating_sub(600));
    prop_oneof![
        6 => 0u64..2048,
        2 => near_an_edge,
        1 => 0..=last,
        1 => (0u64..600).prop_map(move |by| last - by),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let order = || prop_oneof![3 => Just(0u8), 3 => 0u8..=10, 1 => Just(9u8)];
    prop_oneof![
        8 => (page(), order(), any::<u8>())
            .prop_map(|(page, order, kind)| Step::Insert { page, order, kind }),
        4 => page().prop_map(|page| Step::Remove { page }),
        3 => (page(), any::<u8>()).prop_map(|(page, kind)| Step::Replace { page, kind }),
        2 => (page(), order()).prop_map(|(page, order)| Step::Split { page, order }),
        3 => (page(), order(), any::<u8>())
            .prop_map(|(page, order, kind)| Step::Merge { page, order, kind }),
        4 => (page(), 0usize..3, any::<bool>()).prop_map(|(page, tag, on)| Step::Mark { page, tag, on }),
        4 => (page(), 0u64..3000).prop_map(|(page, pages)| Step::Look { page, pages }),
        1 => (0u64..4).prop_map(|limit| Step::DropShadows { limit }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever is done, the store has what the map has, and all of it fits together.
    #[test]
    fn the_store_has_what_a_map_of_pages_has(steps in proptest::collection::vec(step(), 1..120)) {
        let mut both = Both::new();
        for step in &steps {
            both.step(step);
        }
        both.clear();
    }
}

/// Each order, split into each smaller one, with what is beside it.
#[test]
fn every_order_splits_into_every_smaller_one() {
    for from in Order::ALL {
        for to in Order::ALL.into_iter().filter(|to| *to < from) {
            for start in [0, from.pages(), 1 << 20] {
                let mut both = Both::new();
                both.step(&Step::Insert { page: start, order: from.get(), kind: 0 });
                both.step(&Step::Insert { page: start ^ from.pages(), order: 0, kind: 2 });
                both.step(&Step::Mark { page: start, tag: 1, on: true });
                both.step(&Step::Split { page: start + 1, order: to.get() });
                both.step(&Step::Look { page: start, pages: from.pages() });
                both.clear();
            }
        }
    }
}

/// Each order, merged to each larger one, with what is beside it and with holes.
#[test]
fn every_order_merges_to_every_larger_one() {
    for to in Order::ALL {
        for from in Order::ALL.into_iter().filter(|from| *from < to) {
            for start in [0, to.pages(), 1 << 20] {
                for neighbour in [false, true] {
                    let mut both = Both::new();
                    if neighbour {
                        both.step(&Step::Insert { page: start ^ to.pages(), order: 0, kind: 2 });
                    }
                    for nth in (0..to.pages() / from.pages()).filter(|nth| nth % 3 != 1) {
                        both.step(&Step::Insert {
                            page: start + nth * from.pages(),
                            order: from.get(),
                            kind: 0,
                        });
                    }
                    both.step(&Step::Mark { page: start, tag: 2, on: true });
                    both.step(&Step::Merge { page: start + 1, order: to.get(), kind: 0 });
                    both.step(&Step::Look { page: start, pages: to.pages() });
                    both.clear();
                }
            }
        }
    }
}

/// Each order is inserted over a shadow of each order, and over many small ones.
#[test]
fn every_order_is_inserted_over_shadows_of_every_order() {
    for shadow in Order::ALL {
        for order in Order::ALL {
            for at in [0, 1 << 11, 5 << 15] {
                let last = at + shadow.pages().max(order.pages()) - 1;
                let mut both = Both::new();
                both.step(&Step::Insert { page: at, order: shadow.get(), kind: 1 });
                both.step(&Step::Insert { page: last, order: shadow.get(), kind: 1 });
                both.step(&Step::Insert { page: last, order: order.get(), kind: 0 });
                both.step(&Step::Look { page: at, pages: last - at + 1 });
                both.clear();
            }
        }
    }
}
