//! The pool against a map, and what it costs.

use super::super::super::testing::{Machine, Random, assert_sound, frames};
use super::*;
use proptest::prelude::*;
use quire_frame::PcpTechnique;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::vec::Vec;

/// The owner of each object, and where the object is.
#[derive(Default)]
struct Owners {
    objects: RefCell<HashMap<u32, (Location, Vec<u8>)>>,
    /// Every so many times it refuses to let an object move; never, if zero.
    refuses: u32,
    asked: Cell<u32>,
}

impl Referrer for Owners {
    fn relocate(&self, owner: u32, from: Location, to: Location, copy: &mut dyn FnMut()) -> bool {
        self.asked.set(self.asked.get() + 1);
        if self.refuses != 0 && self.asked.get().is_multiple_of(self.refuses) {
            return false;
        }
        let mut objects = self.objects.borrow_mut();
        let (at, _) = objects.get_mut(&owner).expect("the header names an owner");
        assert_eq!(*at, from, "the owner has the object elsewhere");
        copy();
        *at = to;
        true
    }
}

struct Setting {
    frames: Frames<Machine>,
    pool: Pool<Machine>,
    owners: Owners,
    /// Free frames before there was a pool.
    free: u64,
}

impl Setting {
    fn new(refuses: u32) -> Self {
        let frames = frames(&[(1, 16384)], 1, PcpTechnique::default());
        let free = frames.reports().free_frames();
        let pool = Pool::new(&frames, &frames.platform().pin(), SITE).expect("there is memory");
        Self { frames, pool, owners: Owners { refuses, ..Owners::default() }, free }
    }

    fn insert(&self, owner: u32, contents: Vec<u8>) {
        let pin = self.frames.platform().pin();
        let at = self.pool.insert(&self.frames, &pin, owner, &contents).expect("there is memory");
        self.owners.objects.borrow_mut().insert(owner, (at, contents));
    }

    fn remove(&self, owner: u32) {
        if let Some((at, _)) = self.owners.objects.borrow_mut().remove(&owner) {
            self.pool.remove(&self.frames, &self.frames.platform().pin(), at);
        }
    }

    fn compact(&self) -> u64 {
        self.compact_for(u64::MAX)
    }

    fn compact_for(&self, wanted: u64) -> u64 {
        let pin = self.frames.platform().pin();
        self.pool.compact(wanted, |one| {
            one(&self.frames, &pin, &self.owners);
            true
        })
    }

    /// Looks at every object and every list.
    fn check(&self) {
        let mut room = [0; MAX_SIZE];
        for (owner, (at, contents)) in &*self.owners.objects.borrow() {
            let same = |bytes: &[u8]| assert_eq!(bytes, contents, "the object of {owner}");
            // SAFETY: no other thread is there.
            unsafe { self.pool.with(&self.frames, (*at, contents.len()), &mut room, same) };
        }
        let mut frames = 0;
        for (number, class) in CLASSES.iter().enumerate() {
            let chains = self.pool.chains(number).lock();
            frames += chains.count * class.frames;
            let mut listed = 0;
            for (group, list) in chains.partial.iter().enumerate() {
                for head in list.iter(self.frames.map()) {
                    let live = Zspage::at(&self.frames, head).live();
                    assert!(live > 0, "an empty chain is kept");
                    assert_eq!(Chains::group(*class, live), Some(group));
                    listed += live;
                }
            }
            let full = chains.count - chains.partial.iter().map(FolioList::folios).sum::<u32>();
            assert_eq!(chains.live, listed + full * class.objects, "{class:?}");
        }
        assert_eq!(self.pool.used_bytes(), u64::from(frames) * PAGE_SIZE);
        assert_eq!(
            self.frames.reports().free_frames() + u64::from(frames) + self.pool.block.1.pages(),
            self.free
        );
    }

    fn close(self) {
        let owners: Vec<u32> = self.owners.objects.borrow().keys().copied().collect();
        owners.into_iter().for_each(|owner| self.remove(owner));
        assert_eq!(self.pool.used_bytes(), 0);
        self.pool.close(&self.frames, &self.frames.platform().pin());
        assert_eq!(self.frames.reports().free_frames(), self.free);
        assert_sound(&self.frames);
    }
}

fn contents(length: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..length).map(|_| random.next() as u8).collect()
}

#[derive(Clone, Debug)]
enum PoolStep {
    Insert { owner: u32, length: usize },
    Remove { owner: u32 },
    Compact,
}

fn step() -> impl Strategy<Value = PoolStep> {
    // Few lengths, so that classes have many objects, and all lengths, so that no class is left out.
    let length = prop_oneof![1..=MAX_OBJECT, Just(100), Just(1000), Just(2000), Just(MAX_OBJECT)];
    prop_oneof![
        6 => (0..400_u32, length).prop_map(|(owner, length)| PoolStep::Insert { owner, length }),
        4 => (0..400_u32).prop_map(|owner| PoolStep::Remove { owner }),
        1 => Just(PoolStep::Compact),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_pool_is_a_map(steps in prop::collection::vec(step(), 1..600), refuses in 0..4_u32) {
        let setting = Setting::new(refuses);
        for (turn, step) in steps.into_iter().enumerate() {
            match step {
                PoolStep::Insert { owner, length } => {
                    setting.remove(owner);
                    setting.insert(owner, contents(length, turn as u64));
                }
                PoolStep::Remove { owner } => setting.remove(owner),
                PoolStep::Compact => {
                    let before = setting.pool.used_bytes();
                    let freed = setting.compact();
                    prop_assert_eq!(before - setting.pool.used_bytes(), freed * PAGE_SIZE);
                    setting.check();
                }
            }
        }
        setting.check();
        setting.close();
    }
}

#[test]
fn compaction_leaves_less_than_a_chain_free_in_each_class() {
    let setting = Setting::new(0);
    for owner in 0..2000 {
        setting.insert(owner, contents(200 + owner as usize % 5 * 600, 1));
    }
    (0..2000).filter(|owner| owner % 7 != 0).for_each(|owner| setting.remove(owner));
    let before = setting.pool.used_bytes();
    let freed = setting.compact();
    assert!(freed * PAGE_SIZE > before / 2, "{freed} frames of {before} bytes");
    assert_eq!(setting.pool.compacted(), freed);
    for (number, class) in CLASSES.iter().enumerate() {
        assert!(!setting.pool.chains(number).lock().can_shrink(*class));
    }
    setting.check();
    assert_eq!(setting.compact(), 0);
    setting.close();
}

/// A program that waits for a frame is not kept until all is compact.
#[test]
fn compaction_ends_when_enough_is_free() {
    let setting = Setting::new(0);
    for owner in 0..2000 {
        setting.insert(owner, contents(200 + owner as usize % 5 * 600, 1));
    }
    (0..2000).filter(|owner| owner % 7 != 0).for_each(|owner| setting.remove(owner));
    let most = CLASSES.iter().map(|class| u64::from(class.frames)).max().expect("a class");
    for _ in 0..8 {
        assert!((32..32 + most).contains(&setting.compact_for(32)));
    }
    setting.check();
    assert!(setting.compact() > 0, "there was more");
    setting.close();
}

#[test]
fn an_object_that_is_in_use_stays_and_the_others_move() {
    let setting = Setting::new(40);
    (0..3000).for_each(|owner| setting.insert(owner, contents(100, u64::from(owner))));
    (0..3000).filter(|owner| owner % 5 != 0).for_each(|owner| setting.remove(owner));
    let freed = setting.compact();
    assert!(setting.owners.asked.get() > 20 && freed > 0);
    setting.check();
    setting.close();
}

#[test]
fn random_sizes_waste_little() {
    let setting = Setting::new(0);
    let mut random = Random(11);
    let mut bytes = 0;
    for owner in 0..20_000 {
        // What LZ4 makes of pages: from some dozens of bytes to three quarters of a page.
        let length = 40 + random.below(3000) as usize;
        bytes += length as u64;
        setting.insert(owner, contents(length, u64::from(owner)));
    }
    let used = setting.pool.used_bytes();
    assert!(used * 100 < bytes * 107, "{used} bytes for {bytes}");
    setting.close();
}
