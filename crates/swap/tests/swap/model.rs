//! Random work on small devices, held against a model of one entry a slot.

use crate::common::{
    Machine, Random, TestDevice, assert_sound, fill, folio, order, order_to_insert, put, swap, value,
};
use proptest::prelude::*;
use quire_arch::{NodeId, Order, Pfn, Platform};
use quire_frame::{FailAim, FailPlan, FailSite};
use quire_swap::{
    DeviceId, Inserted, IoState, NamedSlot, NoSlots, Shadow, SlotId, Swap, SwapOnOptions, SwapTechnique,
};
use std::collections::BTreeMap;

/// What the model knows of a slot in use.
#[derive(Clone, Copy, Debug)]
struct Entry {
    count: u32,
    /// The folio's first frame and the page's place in it.
    cached: Option<(Pfn, u64)>,
    /// What the page holds: 0 are zeros.
    value: u64,
    shadow: Option<Shadow>,
}

struct Model {
    swap: Swap<Machine>,
    slots: BTreeMap<SlotId, Entry>,
    next: u64,
    random: Random,
}

impl Model {
    fn new(technique: SwapTechnique, slots: u64, seed: u64) -> Self {
        let swap = swap(1 << 13, 1, technique);
        swap.devices().swapon(TestDevice::new(slots), SwapOnOptions::default()).unwrap();
        Self { swap, slots: BTreeMap::new(), next: 1, random: Random(seed) }
    }

    fn order_of(&self, head: Pfn) -> Order {
        self.swap.frames().known(head).word().order()
    }

    /// A slot in use that `wanted` likes.
    fn pick(&mut self, wanted: impl Fn(&Entry) -> bool) -> Option<(SlotId, Entry)> {
        let start = self.random.below(self.slots.len().max(1) as u64) as usize;
        let all = self.slots.iter().chain(&self.slots).skip(start);
        all.take(self.slots.len()).find(|(_, entry)| wanted(entry)).map(|(&slot, &entry)| (slot, entry))
    }

    fn slots_of(&self, head: Pfn) -> Vec<SlotId> {
        let mine = |entry: &Entry| entry.cached.is_some_and(|(folio, _)| folio == head);
        self.slots.iter().filter(|(_, entry)| mine(entry)).map(|(&slot, _)| slot).collect()
    }

    fn add(&mut self, order: Order, zero: bool) {
        let head = folio(&self.swap, order);
        for nth in 0..order.pages() {
            fill(&self.swap, head.offset(nth), if zero { 0 } else { self.next + nth });
        }
        // Nothing is reclaimed behind the model's back: whatever nothing names has left the cache.
        let slot = match self.swap.allocator().add_folio(head, 0) {
            Ok(slot) => slot,
            Err(NoSlots::Full | NoSlots::WrongOrder) => return put(&self.swap, head),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(slot.number() % order.pages(), 0);
        self.swap.counts().add_counts(slot, order.pages() as u32);
        assert_eq!(self.swap.io().write_folio(head), IoState::Done(Ok(())));
        for nth in 0..order.pages() {
            let value = if zero { 0 } else { self.next + nth };
            let entry = Entry { count: 1, cached: Some((head, nth)), value, shadow: None };
            assert!(self.slots.insert(slot.plus(nth), entry).is_none(), "{slot} is given out twice");
        }
        self.next += order.pages();
    }

    fn evict(&mut self) {
        let Some((_, Entry { cached: Some((head, _)), .. })) = self.pick(|entry| entry.cached.is_some())
        else {
            return;
        };
        let order = self.order_of(head);
        let age = self.next;
        let shadow = (!age.is_multiple_of(3)).then(|| Shadow::new(NodeId::FIRST, 0, false, age));
        assert!(!self.swap.cache().evict(head, 3, shadow));
        assert!(self.swap.cache().evict(head, 2, shadow));
        self.swap.frames().free(&self.swap.platform().pin(), head, order).unwrap();
        for slot in self.slots_of(head) {
            let entry = self.slots.get_mut(&slot).unwrap();
            (entry.cached, entry.shadow) = (None, shadow);
            if entry.count == 0 {
                self.slots.remove(&slot);
            }
        }
    }

    /// Drops names of some slots from `slot` on, as far as they have any.
    fn unname(&mut self) {
        let Some((slot, _)) = self.pick(|entry| entry.count > 0) else { return };
        let limit = 1 << self.random.below(10);
        let named = |slot| self.slots.get(&slot).is_some_and(|entry| entry.count > 0);
        let pages = (0..limit).take_while(|&nth| named(slot.plus(nth))).count() as u64;
        let dropped = self.swap.counts().drop_counts(slot, pages as u32);
        let mut cached_only = Vec::new();
        for slot in (0..pages).map(|nth| slot.plus(nth)) {
            let entry = self.slots.get_mut(&slot).unwrap();
            entry.count -= 1;
            match (entry.count, entry.cached) {
                (0, Some((head, _))) => cached_only.push(head),
                (0, None) => _ = self.slots.remove(&slot),
                _ => {}
            }
        }
        assert_eq!(dropped.cached_only, !cached_only.is_empty());
        cached_only.dedup();
        for head in cached_only {
            let slots = self.slots_of(head);
            let free = slots.iter().all(|slot| self.slots[slot].count == 0);
            assert_eq!(self.swap.cache().remove_unnamed(head), free);
            if free {
                slots.iter().for_each(|slot| _ = self.slots.remove(slot));
                put(&self.swap, head);
                put(&self.swap, head);
            }
        }
    }

    fn name(&mut self) {
        let Some((slot, _)) = self.pick(|entry| entry.count > 0) else { return };
        let limit = 1 << self.random.below(10);
        let named = |slot| self.slots.get(&slot).is_some_and(|entry| entry.count > 0);
        let pages = (0..limit).take_while(|&nth| named(slot.plus(nth))).count() as u64;
        self.swap.counts().add_counts(slot, pages as u32);
        (0..pages).for_each(|nth| self.slots.get_mut(&slot.plus(nth)).unwrap().count += 1);
    }

    fn insert(&mut self) {
        let Some((slot, entry)) = self.pick(|entry| entry.count > 0) else { return };
        let best = order_to_insert(&self.swap, slot);
        assert_eq!(best.is_none(), entry.cached.is_some());
        let order = order(self.random.below(10) as u8);
        let first = SlotId::new(slot.device(), slot.number() & !(order.pages() - 1));
        let entries: Vec<_> =
            (0..order.pages()).map(|nth| self.slots.get(&first.plus(nth)).copied()).collect();
        let head = folio(&self.swap, order);
        let out =
            |entry: &Option<Entry>| entry.is_some_and(|entry| entry.count > 0 && entry.cached.is_none());
        let known = self.swap.technique().knows_zeros();
        let zero = |entry: &Option<Entry>| known && entry.is_some_and(|entry| entry.value == 0);
        let fits = entries.iter().all(|entry| out(entry) && zero(entry) == zero(&entries[0]));
        assert_eq!(best.is_some_and(|best| best >= order), fits, "order {order} at {first}: best {best:?}");
        match self.swap.cache().insert(first, head) {
            Inserted::Won { shadow, zero: zeros, memcg: 0 } => {
                assert!(fits);
                assert_eq!((shadow, zeros), (entries[0].unwrap().shadow, zero(&entries[0])));
                assert_eq!(self.swap.io().read_folio(head), IoState::Done(Ok(())));
                for nth in 0..order.pages() {
                    let entry = self.slots.get_mut(&first.plus(nth)).unwrap();
                    (entry.cached, entry.shadow) = (Some((head, nth)), None);
                }
                return;
            }
            Inserted::Found(page) => {
                // They may lie in a larger folio, whose words are those of the parts that it was to be split
                // into.
                for (entry, nth) in entries.iter().zip(0..) {
                    let cached = entry.and_then(|entry| entry.cached).map(|(head, at)| head.offset(at));
                    assert_eq!(cached, Some(page.offset(nth)));
                }
                put(&self.swap, self.swap.frames().folio(page).head());
            }
            Inserted::Gone | Inserted::Conflict => assert!(!fits),
            other => panic!("{other:?}"),
        }
        put(&self.swap, head);
    }

    /// Prepares a folio for a split, which then does not happen.
    fn split(&mut self) {
        let Some((_, Entry { cached: Some((head, _)), .. })) = self.pick(|entry| entry.cached.is_some())
        else {
            return;
        };
        let whole = self.order_of(head);
        if whole > Order::ZERO {
            let to = order(self.random.below(u64::from(whole.get())) as u8);
            self.swap.cache().split_folio(head, whole, to).unwrap();
        }
    }

    fn check(&self) {
        for (&slot, entry) in &self.slots {
            assert_eq!(self.swap.counts().count(slot), entry.count, "{slot}");
            let page = entry.cached.map(|(head, nth)| head.offset(nth));
            assert_eq!(self.swap.cache().lookup(slot), page, "{slot}");
            if let Some((head, nth)) = entry.cached {
                assert_eq!(value(&self.swap, head.offset(nth)), entry.value, "{slot}");
                put(&self.swap, head);
            }
        }
        let mut seen = 0;
        self.swap.audit().for_each_named(|NamedSlot { slot, count, .. }| {
            assert_eq!(Some(count), self.slots.get(&slot).map(|entry| entry.count), "{slot}");
            seen += 1;
        });
        assert_eq!(seen, self.slots.len());
        let free = self.swap.devices().total_slots() - self.slots.len() as u64;
        assert_eq!(self.swap.devices().free_slots(), free);
        assert_sound(&self.swap);
    }

    fn step(&mut self) {
        let choice = self.random.below(12);
        match choice {
            0..=2 => {
                let (large, zero) = (self.random.below(3) == 0, self.random.below(4) == 0);
                let order = order(if large { self.random.below(10) } else { self.random.below(4) } as u8);
                if self.swap.frames().reports().totals().free > 2048 {
                    self.add(order, zero);
                }
            }
            3..=5 => self.evict(),
            6 | 7 => self.unname(),
            8 => self.name(),
            9 => self.split(),
            _ => self.insert(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_work_agrees_with_the_model(seed: u64, technique in 0..SwapTechnique::ALL.len(), slots in 600u64..2600) {
        let mut model = Model::new(SwapTechnique::ALL[technique], slots, seed);
        for _ in 0..6 {
            (0..60).for_each(|_| model.step());
            model.check();
        }
    }

    /// Whatever was freed at random: slots of an order are given out as long as a block of it is free
    /// somewhere where such folios go, and single slots as long as there are any.
    #[test]
    fn every_free_slot_can_be_had(seed: u64, large in 1u8..9) {
        let mut model = Model::new(SwapTechnique::All, 1300, seed);
        for round in 0..40 {
            let order = order(if round % 2 == 0 { large } else { 0 });
            model.add(order, true);
            model.evict();
            model.unname();
        }
        while model.swap.devices().free_slots() > 0 {
            let before = model.swap.devices().free_slots();
            model.add(Order::ZERO, true);
            prop_assert_eq!(model.swap.devices().free_slots(), before - 1);
        }
        model.check();
    }
}

/// Frames for words run out at random: everything is as sound as before, and in the end nothing is left in
/// use.
#[test]
fn without_memory_for_words_nothing_is_lost() {
    for seed in 0..20 {
        println!("seed {seed}");
        let swap = swap(1 << 13, 1, SwapTechnique::All);
        swap.devices().swapon(TestDevice::new(1024), SwapOnOptions::default()).unwrap();
        let mut random = Random(seed);
        let device = DeviceId::new(0).unwrap();
        let table = FailAim::Site(FailSite::new("swap_table"));
        let head = folio(&swap, Order::PMD);
        let slot = swap.allocator().add_folio(head, 0).unwrap();
        assert_eq!(slot, SlotId::new(device, slot.number()));
        swap.counts().add_counts(slot, 512);
        if seed % 2 == 0 {
            assert_eq!(swap.io().write_folio(head), IoState::Done(Ok(())));
            assert!(swap.cache().evict(head, 2, None));
        }
        let mut named = [1u32; 512];
        while named.iter().any(|&count| count > 0) {
            swap.frames().fail_points().set(FailPlan::seeded(random.next(), 700).at(table));
            let first = random.below(512) as usize;
            let pages = 1 + random.below(512 - first as u64) as usize;
            let run = named[first..first + pages].iter().take_while(|&&count| count > 0).count();
            let at = slot.plus(first as u64);
            if run > 0 && random.below(4) == 0 && named[first] < 3 {
                swap.counts().add_counts(at, run as u32);
                named[first..first + run].iter_mut().for_each(|count| *count += 1);
            } else if run > 0 {
                swap.counts().drop_counts(at, run as u32);
                named[first..first + run].iter_mut().for_each(|count| *count -= 1);
            }
            let held = named.iter().filter(|&&count| count > 0).count() as u64;
            assert!(1024 - swap.devices().free_slots() >= held);
            assert_sound(&swap);
        }
        swap.frames().fail_points().set(FailPlan::OFF);
        if seed % 2 != 0 {
            assert!(swap.cache().remove_unnamed(head));
        }
        assert_eq!(swap.devices().free_slots(), 1024, "seed {seed}");
        assert_sound(&swap);
    }
}

/// The words of a folio that was to be split, and was not, are those of its pages.
#[test]
fn an_insertion_for_a_page_finds_the_folio_that_was_to_be_split() {
    let swap = swap(1 << 13, 1, SwapTechnique::All);
    swap.devices().swapon(TestDevice::new(512), SwapOnOptions::default()).unwrap();
    let head = folio(&swap, order(4));
    let slot = swap.allocator().add_folio(head, 0).unwrap();
    swap.counts().add_counts(slot, 16);
    swap.cache().split_folio(head, order(4), order(2)).unwrap();
    let (page, part) = (folio(&swap, Order::ZERO), folio(&swap, order(2)));
    assert_eq!(swap.cache().insert(slot.plus(9), page), Inserted::Found(head.offset(9)));
    put(&swap, head);
    assert_eq!(swap.cache().insert(slot.plus(8), part), Inserted::Conflict);
    put(&swap, page);
    put(&swap, part);
    swap.counts().drop_counts(slot, 16);
    assert!(swap.cache().remove_unnamed(head));
    put(&swap, head);
    assert_eq!(swap.devices().free_slots(), 512);
    assert_sound(&swap);
}
