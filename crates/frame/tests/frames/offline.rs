//! Ranges that are taken out of use and back.

use crate::support::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

fn range(start: u64, end: u64) -> PfnRange {
    PfnRange::new(Pfn(start), Pfn(end))
}

#[test]
fn a_free_range_leaves_and_comes_back() {
    for pcp in PcpTechnique::ALL {
        let frames = frames(&[(0, 8192)], 1, pcp);
        let pin = frames.platform().pin();
        let before = frames.reports().totals();
        // A page block in the middle of the largest free block, and a larger part.
        for range in [range(512, 1024), range(2048, 4608)] {
            assert_eq!(frames.hotplug().take_offline(&pin, range), Ok(range.len()));
            assert_sound(&frames);
            let now = frames.reports().totals();
            assert_eq!((now.managed, now.free), (before.managed - range.len(), before.free - range.len()));
            assert_eq!(frames.known(range.start()).kind(), Kind::Offline);
            assert_eq!(frames.free(&pin, range.start(), Order::ZERO), Err(FreeError::Offline));
            assert!(!frames.known(range.start()).try_get());
            assert_eq!(frames.hotplug().take_offline(&pin, range), Err(HotplugError::Offline(range.start())));
            let mut got = Vec::new();
            while let Ok(pfn) = frames.allocate(&pin, ONE) {
                assert!(!range.contains(pfn));
                got.push(pfn);
            }
            assert_eq!(got.len() as u64, now.managed);
            put_all(&frames, got, Order::ZERO);
            assert_eq!(frames.hotplug().bring_online(&pin, range), Ok(range.len()));
            assert_eq!(frames.reports().totals(), before);
            frames.pcp().drain_all(&pin);
            assert_sound(&frames);
            assert_eq!(frames.hotplug().bring_online(&pin, range), Err(HotplugError::Online(range.start())));
        }
    }
}

#[test]
fn what_cannot_leave_is_named_and_nothing_changes() {
    let frames = frames(&[(0, 4096), (8192, 8292)], 1, PcpTechnique::All);
    let pin = frames.platform().pin();
    let reserved = frames.reserved();
    let block = reserved.start().block_start(Order::PMD);
    let whole = PfnRange::new(block, block.offset(512));
    assert_eq!(frames.hotplug().take_offline(&pin, whole), Err(HotplugError::Reserved(reserved.start())));
    assert_eq!(frames.hotplug().take_offline(&pin, range(100, 1124)), Err(HotplugError::Unaligned));
    assert_eq!(frames.hotplug().take_offline(&pin, range(512, 512)), Err(HotplugError::NoRam));
    assert_eq!(frames.hotplug().take_offline(&pin, range(4608, 5120)), Err(HotplugError::NoRam));
    let held = frames.allocate(&pin, AllocRequest::new(order(3), TEST)).unwrap();
    let block = held.block_start(Order::PMD);
    let around = PfnRange::new(Pfn(block.0 & !1023), Pfn((block.0 & !1023) + 1024));
    let types = zone(&frames).pageblocks;
    assert_eq!(frames.hotplug().take_offline(&pin, around), Err(HotplugError::Busy(held)));
    assert_eq!(zone(&frames).pageblocks, types, "types are as before");
    assert_sound(&frames);
    frames.free(&pin, held, order(3)).unwrap();
    assert_eq!(frames.hotplug().take_offline(&pin, around), Ok(1024));
    assert_sound(&frames);
    // RAM that does not fill its page block leaves with what there is of it.
    let rest = range(8192, 8704);
    if reserved.start() < Pfn(8192) {
        assert_eq!(frames.hotplug().take_offline(&pin, rest), Ok(100));
        assert_sound(&frames);
        assert_eq!(frames.hotplug().bring_online(&pin, rest), Ok(100));
    }
    assert_eq!(frames.hotplug().bring_online(&pin, around), Ok(1024));
}

/// Other CPUs allocate and free all the time, also what they have of the leaving range.
#[test]
fn a_range_leaves_under_traffic() {
    for seed in [1, 2] {
        println!("seed {seed}");
        let config = FrameConfig { min_free_kib: Some(0), ..FrameConfig::default() };
        let frames = frames_by(Machine::new(&[(0, 8192)], 2), config);
        let leaving = range(1024, 2048);
        let gone = AtomicBool::new(false);
        let (tries, misuse) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                run_on(1);
                let mut random = Random(seed);
                let mut held: Vec<(Pfn, Order)> = Vec::new();
                while !gone.load(Ordering::Acquire) || random.below(2000) != 0 {
                    let was_gone = gone.load(Ordering::Acquire);
                    let pin = frames.platform().pin();
                    let order = order([0, 0, 2, 4][random.below(4) as usize]);
                    let kind = Migratetype::PCP_TYPES[random.below(3) as usize];
                    let request = AllocRequest::new(order, TEST).movability(kind);
                    if held.len() < 300
                        && random.below(2) == 0
                        && let Ok(pfn) = frames.allocate(&pin, request)
                    {
                        misuse.fetch_add(u64::from(was_gone && leaving.contains(pfn)), Ordering::Relaxed);
                        held.push((pfn, order));
                    } else if !held.is_empty() {
                        let (pfn, order) = held.swap_remove(random.below(held.len() as u64) as usize);
                        frames.free(&pin, pfn, order).unwrap();
                    }
                }
                let pin = frames.platform().pin();
                held.into_iter().for_each(|(pfn, order)| frames.free(&pin, pfn, order).unwrap());
            });
            scope.spawn(|| {
                run_on(0);
                loop {
                    tries.fetch_add(1, Ordering::Relaxed);
                    match frames.hotplug().take_offline(&frames.platform().pin(), leaving) {
                        Ok(removed) => break assert_eq!(removed, 1024),
                        Err(error) => assert!(matches!(error, HotplugError::Busy(_)), "{error}"),
                    }
                }
                gone.store(true, Ordering::Release);
            });
        });
        println!("{} tries", tries.load(Ordering::Relaxed));
        assert_eq!(misuse.load(Ordering::Relaxed), 0, "a frame was given out after it had left");
        assert_sound(&frames);
        let pin = frames.platform().pin();
        assert_eq!(frames.hotplug().bring_online(&pin, leaving), Ok(1024));
        frames.pcp().drain_all(&pin);
        assert_sound(&frames);
        assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed);
    }
}

/// What comes home into an isolated block does not take the neighbour with it: only the range leaves, and
/// only the range comes back.
#[test]
fn a_block_that_leaves_does_not_join_its_neighbour() {
    let frames = frames(&[(0, 8192)], 1, PcpTechnique::All);
    let pin = frames.platform().pin();
    let before = frames.reports().totals();
    let one = frames.allocate(&pin, ONE).unwrap();
    // It is on the CPU's list when its page block is isolated, and completes that block afterwards.
    frames.free(&pin, one, Order::ZERO).unwrap();
    let block = one.block_start(Order::PMD);
    let neighbour = block.buddy(Order::PMD);
    assert_eq!(frames.known(neighbour).kind(), Kind::Free, "the neighbour is whole");
    assert_eq!(frames.hotplug().take_offline(&pin, PfnRange::new(block, block.offset(512))), Ok(512));
    assert_eq!(frames.reports().totals().free, before.free - 512, "the neighbour is still to be had");
    assert_eq!(zone(&frames).pageblocks[Migratetype::Isolate.index()], 1);
}

/// A block of two page blocks comes back after one of them began to leave: that half stays isolated. (A
/// block's type was once asked of its first frame alone.)
#[test]
fn a_block_of_two_page_blocks_that_is_freed_while_one_leaves_comes_back_in_pieces() {
    for second in [false, true] {
        let frames = frames(&[(0, 16384)], 1, PcpTechnique::All);
        let pin = frames.platform().pin();
        let pfn = frames.allocate(&pin, AllocRequest::new(order(10), TEST)).unwrap();
        let start = pfn.offset(if second { 512 } else { 0 });
        let half = PfnRange::new(start, start.offset(512));
        // In the limbo it counts as busy until the leaving itself reaps it: between the isolation and the
        // look.
        frames.limbo().retire(&pin, pfn, order(10)).unwrap();
        assert_eq!(frames.hotplug().take_offline(&pin, half), Ok(512));
        assert_sound(&frames);
        while let Ok(pfn) = frames.allocate(&pin, ONE) {
            assert!(!half.contains(pfn), "{pfn:?} was given out after it had left");
        }
        assert_eq!(frames.hotplug().bring_online(&pin, half), Ok(512));
    }
}

/// What was never taken away cannot be brought back, whatever state it is in.
#[test]
fn only_what_left_can_come_back() {
    let frames = frames_with_watermarks(Machine::new(&[(0, 16384)], 1), 48 << 10);
    let pin = frames.platform().pin();
    make_low(&frames);
    let reserved = frames.allocate(&pin, AllocRequest::new(order(1), TEST).atomic()).unwrap();
    assert_eq!(frames.map().block_migratetype(reserved), Migratetype::HighAtomic);
    let block = reserved.block_start(Order::PMD);
    let block = PfnRange::new(block, block.offset(512));
    assert!(matches!(frames.hotplug().bring_online(&pin, block), Err(HotplugError::Online(_))));
    assert_eq!(frames.map().block_migratetype(reserved), Migratetype::HighAtomic);
    for (range, error) in [
        (range(100, 612), HotplugError::Unaligned),
        (range(16384, 16896), HotplugError::NoRam),
        (PfnRange::new(Pfn(1 << 40), Pfn(1 << 50)), HotplugError::NoRam),
        (PfnRange::new(Pfn(0), Pfn(1 << 50)), HotplugError::NoRam),
    ] {
        assert_eq!(frames.hotplug().bring_online(&pin, range), Err(error));
        assert_eq!(frames.hotplug().take_offline(&pin, range), Err(error));
    }
}

/// A zone that shrank lets its CPUs keep less: of a quarter of it an eighth.
#[test]
fn the_bounds_of_the_lists_follow_the_zone() {
    let frames = frames(&[(0, 65536)], 1, PcpTechnique::All);
    let pin = frames.platform().pin();
    let most = || frames.reports().pcp_reports(ZoneKind::Dma32).next().unwrap().high_bounds.1;
    let totals = frames.reports().totals();
    assert_eq!(most(), totals.managed / 8);
    let end = frames.reserved().start().block_start(Order::PMD).0;
    let leaving = range(16384.min(end), end.min(65536));
    assert_eq!(frames.hotplug().take_offline(&pin, leaving), Ok(leaving.len()));
    let now = frames.reports().totals();
    assert_eq!((now.managed, now.present), (totals.managed - leaving.len(), totals.present - leaving.len()));
    assert_eq!(most(), now.managed / 8);
    assert_eq!(frames.hotplug().bring_online(&pin, leaving), Ok(leaving.len()));
    assert_eq!(frames.reports().totals(), totals);
    assert_eq!(most(), totals.managed / 8);
}

struct TellOnDrop<'f>(&'f AtomicBool);

impl Drop for TellOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The second of two page blocks leaves and comes back while another CPU takes and gives blocks of both.
#[test]
fn half_of_a_block_leaves_beside_traffic_of_whole_ones() {
    let frames = frames(&[(0, 4096)], 2, PcpTechnique::All);
    let free = frames.reports().free_frames();
    let half = range(1024 + 512, 2048);
    let (stop, gone) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            run_on(1);
            while !stop.load(Ordering::Acquire) {
                let pin = frames.platform().pin();
                let was_gone = gone.load(Ordering::Acquire);
                let request = AllocRequest::new(order(10), TEST).without_drain();
                let taken: Vec<Pfn> = (0..3).filter_map(|_| frames.allocate(&pin, request).ok()).collect();
                for pfn in taken {
                    let overlaps = pfn < half.end() && half.start() < pfn.offset(1024);
                    // It may have come back since.
                    assert!(!(overlaps && was_gone && gone.load(Ordering::Acquire)), "{pfn:?} had left");
                    frames.free(&pin, pfn, order(10)).unwrap();
                }
            }
        });
        run_on(0);
        // Ends the traffic, also when this thread panics.
        let _end = TellOnDrop(&stop);
        for _ in 0..3000 {
            let pin = frames.platform().pin();
            if let Ok(count) = frames.hotplug().take_offline(&pin, half) {
                gone.store(true, Ordering::Release);
                assert_eq!(count, half.len());
                thread::yield_now();
                gone.store(false, Ordering::Release);
                assert_eq!(frames.hotplug().bring_online(&pin, half), Ok(half.len()));
            }
        }
    });
    assert_eq!(frames.reports().free_frames(), free);
}
