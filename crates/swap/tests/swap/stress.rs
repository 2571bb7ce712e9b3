//! Two CPUs at the same slots.

use crate::common::{Random, TestDevice, assert_sound, folio, machine, order, put, swap};
use quire_arch::Platform;
use quire_swap::{Inserted, IoState, SlotId, SwapOnOptions, SwapTechnique};
use std::sync::Mutex;
use std::thread;

/// Both threads page out, page in, drop names and look; each name in the pool is one entry that another
/// thread owns.
#[test]
fn two_cpus_at_the_same_slots_leave_everything_sound() {
    for (seed, technique) in [(1, SwapTechnique::All), (2, SwapTechnique::Bypass)] {
        println!("seed {seed}");
        let swap = swap(1 << 13, 2, technique);
        for _ in 0..2 {
            swap.devices()
                .swapon(TestDevice::new(1100), SwapOnOptions { priority: Some(1), discard: false })
                .unwrap();
        }
        let pool = Mutex::new(Vec::<SlotId>::new());
        let work = |cpu: usize| {
            machine::run_on(cpu);
            let mut random = Random(seed * 100 + cpu as u64);
            for _ in 0..20_000 {
                let take = |random: &mut Random| {
                    let mut pool = pool.lock().unwrap();
                    let len = pool.len() as u64;
                    (len > 0).then(|| pool.swap_remove(random.below(len) as usize))
                };
                match random.below(4) {
                    0 if pool.lock().unwrap().len() < 1500 => {
                        let order = order(random.below(4) as u8);
                        let head = folio(&swap, order);
                        let lock = swap.frames().folios().lock_folio(head).unwrap();
                        if let Ok(slot) = swap.allocator().add_folio(head, 0) {
                            swap.counts().add_counts(slot, order.pages() as u32);
                            assert_eq!(swap.io().write_folio(head), IoState::Done(Ok(())));
                            pool.lock().unwrap().extend((0..order.pages()).map(|nth| slot.plus(nth)));
                            if swap.cache().evict(head, 2, None) {
                                drop(lock);
                                swap.frames().free(&swap.platform().pin(), head, order).unwrap();
                                continue;
                            }
                        }
                        drop(lock);
                        put(&swap, head);
                    }
                    1 => {
                        let Some(slot) = take(&mut random) else { continue };
                        swap.counts().drop_counts(slot, 1);
                    }
                    2 => {
                        // A name of one's own keeps the slot.
                        let Some(slot) = take(&mut random) else { continue };
                        let head = folio(&swap, order(0));
                        let lock = swap.frames().folios().lock_folio(head).unwrap();
                        let inserted = swap.cache().insert(slot, head);
                        if let Inserted::Won { .. } = inserted {
                            assert_eq!(swap.io().read_folio(head), IoState::Done(Ok(())));
                            assert!(
                                !swap.counts().drop_counts(slot, 1).cached_only
                                    || swap.counts().count(slot) == 0
                            );
                            if swap.cache().remove_unnamed(head) {
                                drop(lock);
                                put(&swap, head);
                                put(&swap, head);
                                continue;
                            }
                        } else {
                            pool.lock().unwrap().push(slot);
                        }
                        drop(lock);
                        if let Inserted::Found(page) = inserted {
                            put(&swap, swap.frames().folio(page).head());
                        }
                        put(&swap, head);
                    }
                    _ => {
                        let Some(slot) = pool.lock().unwrap().last().copied() else { continue };
                        if let Some(page) = swap.cache().lookup(slot) {
                            put(&swap, swap.frames().folio(page).head());
                        }
                    }
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| work(0));
            scope.spawn(|| work(1));
        });
        assert_sound(&swap);
        for slot in pool.into_inner().unwrap() {
            swap.counts().drop_counts(slot, 1);
        }
        while swap.reclaim().reclaim_unnamed(&mut |_| {}) > 0 {}
        assert_eq!(swap.devices().free_slots(), swap.devices().total_slots(), "seed {seed}");
        assert_sound(&swap);
    }
}
