//! Frames: per-CPU lists against remote drains, and frames that wait for readers.

use crate::harness::*;
use quire_frame::{AllocRequest, FrameChain, Kind, Pinned};
use quire_sync::atomic::as_one_step;
use quire_sync::atomic::raw::{AtomicU64, Ordering};
use shuttle::thread;
use std::collections::HashSet;
use std::sync::Mutex;

/// Which thread has which frame: each may have one owner. std's lock, since this is no part of the model.
#[derive(Default)]
struct Owners(Mutex<HashSet<Pfn>>);

impl Owners {
    fn take(&self, pfn: Pfn) {
        assert!(self.0.lock().expect("no owner panicked").insert(pfn), "{pfn:?} was given out twice");
    }

    fn give(&self, pfn: Pfn) {
        assert!(self.0.lock().expect("no owner panicked").remove(&pfn), "{pfn:?} has no owner");
    }
}

/// Takes `count` frames through the CPU's list, then frees them through it; each in a pinned section of its
/// own.
fn take_and_give(machine: &Machine, cpu: usize, count: usize, owners: &Owners) {
    let (frames, platform) = (machine.memory().frames(), machine.memory().platform());
    machine.vcpu(cpu).expect("each CPU has one thread").run(|| {
        let taken: Vec<Pfn> = (0..count)
            .map(|_| {
                let pfn = frames.allocate(&platform.pin(), AllocRequest::anonymous().uninitialised());
                pfn.expect("there is memory enough")
            })
            .inspect(|&pfn| owners.take(pfn))
            .collect();
        for pfn in taken {
            owners.give(pfn);
            frames.free(&platform.pin(), pfn, Order::ZERO).expect("the frame is ours");
        }
    });
}

#[test]
fn shuttle_a_cpu_uses_its_list_while_another_drains_it() {
    check(|| {
        let machine = machine(2);
        let frames = machine.memory().frames();
        let free = as_one_step(|| frames.reports().free_frames());
        let owners = Owners::default();
        // The list is not empty when the drains begin, and it is used until they end.
        as_one_step(|| take_and_give(&machine, 0, 3, &owners));
        thread::scope(|scope| {
            scope.spawn(|| {
                for count in [2, 3] {
                    take_and_give(&machine, 0, count, &owners);
                }
            });
            scope.spawn(|| {
                let cpu = machine.vcpu(1).expect("each CPU has one thread");
                for _ in 0..3 {
                    cpu.run(|| frames.pcp().drain(&machine.memory().platform().pin(), CpuId::default()));
                }
                drop(cpu);
                take_and_give(&machine, 1, 2, &owners);
            });
        });
        assert_eq!(as_one_step(|| frames.reports().free_frames()), free);
        audit(&machine);
    });
}

/// A table is reached through one word, as through an entry of its parent. Its content says what it is.
#[test]
fn shuttle_a_walker_under_the_epoch_never_meets_a_reused_table() {
    const TABLE: u64 = 7;
    const REUSED: u64 = 13;
    check(|| {
        let machine = machine(2);
        let (frames, platform) = (machine.memory().frames(), machine.memory().platform());
        let make = |request: AllocRequest, content: u64| {
            let pfn = frames.allocate(&platform.pin(), request).expect("there is memory enough");
            // SAFETY: the frame has just been allocated by this thread.
            let entries = unsafe { frames.table(pfn) };
            entries[0].store(content, Ordering::Relaxed);
            pfn
        };
        let linked = AtomicU64::new(as_one_step(|| make(AllocRequest::table(), TABLE)).0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let cpu = machine.vcpu(0).expect("each CPU has one thread");
                for _ in 0..2 {
                    cpu.run(|| {
                        let pin = platform.pin();
                        let _epoch = frames.epoch().enter(&pin);
                        let table = linked.load(Ordering::Acquire);
                        if table != 0 {
                            // SAFETY: it was found linked, inside the epoch; that this suffices is what the
                            // model checks.
                            let entries = unsafe { frames.table(Pfn(table)) };
                            assert_eq!(entries[0].load(Ordering::Relaxed), TABLE, "the table was reused");
                        }
                    });
                }
            });
            scope.spawn(|| {
                let cpu = machine.vcpu(1).expect("each CPU has one thread");
                cpu.run(|| {
                    let table = Pfn(linked.swap(0, Ordering::AcqRel));
                    let pin = platform.pin();
                    frames.limbo().retire(&pin, table, Order::ZERO).expect("the table is ours");
                    frames.limbo().reap_all(&pin);
                    // The list hands out what it got last, if it is of the block's type.
                    let next = make(AllocRequest::anonymous(), REUSED);
                    frames.free(&pin, next, Order::ZERO).expect("the frame is ours");
                });
            });
        });
        audit(&machine);
    });
}

/// Frames that one CPU took are freed by another, whose lists are full: they go back by the stack of returned
/// blocks, while their owner takes from it and a third CPU drains.
#[test]
fn shuttle_returned_blocks_against_their_owner_and_a_drain() {
    check(|| {
        let machine = machine(3);
        let (frames, platform) = (machine.memory().frames(), machine.memory().platform());
        let free = as_one_step(|| frames.reports().free_frames());
        let owners = Owners::default();
        let request = AllocRequest::anonymous().uninitialised();
        let on = |cpu: usize| machine.vcpu(cpu).expect("each CPU has one thread");
        // CPU 0 has missed, so it wants frames back; CPU 1 has as many as it may keep.
        let handed: Vec<Pfn> = as_one_step(|| {
            let taken: Vec<Pfn> = on(0).run(|| {
                let take = || frames.allocate(&platform.pin(), request).expect("there is memory enough");
                (0..12).map(|_| take()).collect()
            });
            let (kept, handed) = taken.split_at(6);
            on(1).run(|| {
                kept.iter().for_each(|&pfn| frames.free(&platform.pin(), pfn, Order::ZERO).expect("ours"));
            });
            handed.to_vec()
        });
        handed.iter().for_each(|&pfn| owners.take(pfn));
        thread::scope(|scope| {
            scope.spawn(|| take_and_give(&machine, 0, 4, &owners));
            scope.spawn(|| {
                on(1).run(|| {
                    for &pfn in &handed {
                        owners.give(pfn);
                        frames.free(&platform.pin(), pfn, Order::ZERO).expect("the frame is ours");
                    }
                });
            });
            scope.spawn(|| {
                on(2).run(|| frames.pcp().drain(&platform.pin(), CpuId::default()));
            });
        });
        assert_eq!(as_one_step(|| frames.reports().free_frames()), free);
        audit(&machine);
    });
}

/// A page block goes offline while two CPUs allocate from it and free: once it is offline, no CPU gets a
/// frame of it, and if it cannot go offline nothing is lost.
#[test]
fn shuttle_a_page_block_leaves_under_traffic() {
    check(|| {
        // The memory map takes the end; the first page block is free.
        let machine = machine_with(HostConfig {
            ram: vec![PfnRange::new(Pfn(512), Pfn(1024 + 256))],
            ..HostConfig::with_ram(0).cpus(2)
        });
        let (frames, platform) = (machine.memory().frames(), machine.memory().platform());
        let leaving = PfnRange::new(Pfn(512), Pfn(1024));
        let get = || frames.allocate(&platform.pin(), AllocRequest::anonymous().uninitialised());
        let put = |pfn| frames.free(&platform.pin(), pfn, Order::ZERO).expect("the frame is ours");
        // All other memory is allocated, so that the traffic is in the block that goes offline.
        let kept: Vec<Pfn> = as_one_step(|| {
            machine.vcpu(0).expect("each CPU has one thread").run(|| {
                let all: Vec<Pfn> = std::iter::from_fn(|| get().ok()).collect();
                let (inside, outside): (Vec<Pfn>, Vec<Pfn>) =
                    all.into_iter().partition(|&pfn| leaving.contains(pfn));
                inside.into_iter().for_each(put);
                frames.pcp().drain_all(&platform.pin());
                outside
            })
        });
        let free = as_one_step(|| frames.reports().free_frames()) + kept.len() as u64;
        let owners = Owners::default();
        let gone = Fact::default();
        let traffic = |count: usize| {
            let mut taken = Vec::new();
            for _ in 0..count {
                let was_gone = gone.is_told();
                let Ok(pfn) = get() else { break };
                assert!(!was_gone || !leaving.contains(pfn), "{pfn:?} was given out after it had left");
                owners.take(pfn);
                taken.push(pfn);
            }
            for pfn in taken {
                owners.give(pfn);
                put(pfn);
            }
        };
        let removed = thread::scope(|scope| {
            scope.spawn(|| {
                machine.vcpu(0).expect("each CPU has one thread").run(|| {
                    traffic(2);
                    traffic(1);
                });
            });
            let leaver = scope.spawn(|| {
                machine.vcpu(1).expect("each CPU has one thread").run(|| {
                    let removed = frames.hotplug().take_offline(&platform.pin(), leaving);
                    if removed.is_ok() {
                        gone.tell();
                    }
                    traffic(1);
                    removed.unwrap_or(0)
                })
            });
            leaver.join().expect("no thread panics")
        });
        assert!(removed == 0 || removed == leaving.len(), "{removed} frames left");
        as_one_step(|| machine.vcpu(0).expect("the threads ended").run(|| kept.into_iter().for_each(put)));
        assert_eq!(as_one_step(|| frames.reports().free_frames()), free - removed);
        audit(&machine);
    });
}

/// Hazard: a page of a folio is unmapped, and a thread that found it before pins it without a lock while a
/// split gives the page up. The page is freed all the same, by whichever of the two is the last to have it.
#[test]
fn shuttle_a_split_that_frees_a_page_against_a_late_pin_of_it() {
    check(|| {
        let machine = machine(2);
        let (frames, platform) = (machine.memory().frames(), machine.memory().platform());
        let order = Order::new(2).expect("an order");
        let head = as_one_step(|| {
            let request = AllocRequest::anonymous().uninitialised().kind(Kind::Anonymous).order(order);
            let head = frames.allocate(&platform.pin(), request).expect("there is memory enough");
            // Page 1 is not mapped any more. One reference is the mappings', one is the splitting thread's.
            frames.known(head).as_folio().set_maps(3);
            assert!(frames.known(head).get(1));
            head
        });
        let on = |cpu: usize| machine.vcpu(cpu).expect("each CPU has one thread");
        thread::scope(|scope| {
            scope.spawn(|| {
                on(0).run(|| {
                    let (pin, mut chain) = (platform.pin(), FrameChain::new());
                    let pinned = match frames.folios().try_pin_folio(head.offset(1)) {
                        Pinned::Folio(_) => head.offset(1),
                        Pinned::Another(other) => other,
                        Pinned::Nothing => return,
                    };
                    // It was unmapped meanwhile, so the pin ends at once.
                    let (folio, order) = frames.folios().unpin_folio(pinned);
                    let _ = frames.folios().put_folio(&mut chain, folio, order);
                    frames.free_chain(&pin, chain);
                });
            });
            scope.spawn(|| {
                on(1).run(|| {
                    let (pin, mut chain) = (platform.pin(), FrameChain::new());
                    let mut split = frames.folios().begin_split(frames.folios().lock_head(head));
                    [0, 2, 3].into_iter().for_each(|nth| split.count_map(nth));
                    // Refused while the page is pinned as a part of the folio.
                    let _ = split.finish(Order::ZERO, 1, false, &mut chain);
                    frames.free_chain(&pin, chain);
                });
            });
        });
        as_one_step(|| {
            let (pin, mut chain) = (platform.pin(), FrameChain::new());
            let order = frames.folio(head).order();
            for nth in (0..4).step_by(order.pages() as usize).filter(|&nth| order > Order::ZERO || nth != 1) {
                frames.known(head.offset(nth)).as_folio().set_maps(0);
                // The reference of the mappings, and the first part's second one.
                for _ in 0..frames.known(head.offset(nth)).refs() {
                    let _ = frames.folios().put_folio(&mut chain, head.offset(nth), order);
                }
            }
            frames.free_chain(&pin, chain);
        });
        audit(&machine);
    });
}
