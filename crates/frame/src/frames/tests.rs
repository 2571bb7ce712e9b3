//! Blocks that a CPU keeps while the type of their page block changes.

use super::Frames;
use super::pcp::FramePcp;
use super::surplus::Surplus;
use crate::chain::FrameChain;
use crate::error::FreeError;
use crate::kind::Kind;
use crate::map::{FrameFlags, Migratetype, PAGEBLOCK_ORDER};
use crate::pcp::{CHUNK_BLOCKS, PcpTechnique};
use crate::request::AllocRequest;
use crate::testing::{Machine, TEST, assert_sound, at_the_next_wait, frames, run_on};
use crate::zone::Zone;
use crate::zone_id::ZoneKind;
use core::ptr;
use quire_arch::{CpuId, LockClass, Order, Pfn, PfnRange, Platform};
use quire_sync::RawSpin;
use std::vec::Vec;

/// 128 MiB: enough for the budget of a list to hold a page block.
const FRAMES: u64 = 1 << 15;

/// Where CPU 0 has the block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BlockPlace {
    List,
    /// CPU 1 returned it.
    Stack,
}

/// Every way in which a block of order 0, 3 or 9 is kept.
fn each(mut check: impl FnMut(PcpTechnique, Order, BlockPlace)) {
    for pcp in PcpTechnique::ALL {
        for order in [0, 3, 9].map(|order| Order::ALL[order]) {
            if pcp.switch().covers(order) {
                check(pcp, order, BlockPlace::List);
            }
            if pcp.switch().tunes() {
                check(pcp, order, BlockPlace::Stack);
            }
        }
    }
}

fn dma32(frames: &Frames<Machine>) -> &Zone<Machine> {
    frames.zone(ZoneKind::Dma32.into())
}

/// A movable block of `order` that CPU 0 keeps in `place`. The caller runs on CPU 0 afterwards.
fn kept(frames: &Frames<Machine>, order: Order, place: BlockPlace) -> Pfn {
    run_on(0);
    let pin = frames.platform().pin();
    let movable = AllocRequest::new(order, TEST).movability(Migratetype::Movable);
    let pfn = frames.allocate(&pin, movable).unwrap();
    let set = dma32(frames).pcp.mine(&pin);
    match place {
        BlockPlace::List => frames.free(&pin, pfn, order).unwrap(),
        BlockPlace::Stack => {
            set.returned.set_accepts(order.pages());
            frames.gather(&mut FrameChain::new(), pfn, order).unwrap();
            run_on(1);
            let pin = frames.platform().pin();
            assert!(Surplus::new(frames).free_past_lists(
                &pin,
                dma32(frames),
                frames.map().index(pfn),
                order
            ));
            run_on(0);
        }
    }
    let on_stack = if place == BlockPlace::Stack { order.pages() } else { 0 };
    assert_eq!(set.returned.pages(), on_stack);
    assert_eq!(frames.known(pfn).kind(), Kind::Pcp);
    pfn
}

fn page_block(pfn: Pfn) -> PfnRange {
    let start = pfn.block_start(PAGEBLOCK_ORDER);
    PfnRange::new(start, start.offset(PAGEBLOCK_ORDER.pages()))
}

/// A block on the list or the stack is freed to the type that its page block has by then. Here that is
/// isolated, since a page block that is one block cannot be stolen while a CPU keeps it.
#[test]
fn a_kept_block_goes_home_to_the_new_type_of_its_page_block() {
    each(|pcp, order, place| {
        let frames = frames(&[(0, FRAMES)], 2, pcp);
        let pfn = kept(&frames, order, place);
        let pin = frames.platform().pin();
        let set = dma32(&frames).pcp.mine(&pin);
        let kept = set.lists.lock().pages() + set.returned.pages();
        let before = {
            let mut zone = dma32(&frames).lock(frames.platform());
            zone.isolate_block(frames.map(), page_block(pfn));
            zone.free_of(Migratetype::Isolate)
        };
        assert_eq!(frames.pcp().drain(&pin, pin.cpu()), kept);
        let after = dma32(&frames).lock(frames.platform()).free_of(Migratetype::Isolate);
        assert_eq!(after - before, kept, "{pcp:?}, order {order}, {place:?}");
        assert_sound(&frames);
        let events = frames.events.mine(&pin);
        dma32(&frames).lock(frames.platform()).restore_block(frames.map(), page_block(pfn), events);
        assert_sound(&frames);
        assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed);
    });
}

/// A page block is stolen while a smaller block of it is on a stack: the drain frees that to the thief's
/// type.
#[test]
fn a_returned_block_whose_page_block_was_stolen_goes_home_to_the_new_type() {
    for order in [0, 3].map(|order| Order::ALL[order]) {
        let frames = frames(&[(0, 512)], 2, PcpTechnique::All);
        let pfn = kept(&frames, order, BlockPlace::Stack);
        run_on(1);
        let pin = frames.platform().pin();
        let stolen = frames.allocate(&pin, AllocRequest::new(Order::ALL[5], TEST)).unwrap();
        assert_eq!(frames.map().block_migratetype(pfn), Migratetype::Unmovable, "order {order}");
        frames.pcp().drain_all(&pin);
        assert_sound(&frames);
        assert_eq!(dma32(&frames).lock(frames.platform()).free_of(Migratetype::Movable), 0);
        frames.free(&pin, stolen, Order::ALL[5]).unwrap();
        assert_sound(&frames);
    }
}

/// The owner looks through its stack when it misses something: what is isolated by then is not allocated, and
/// goes on no list.
#[test]
fn a_returned_block_of_an_isolated_page_block_is_not_given_out() {
    for order in [0, 3, 9].map(|order| Order::ALL[order]) {
        let frames = frames(&[(0, FRAMES)], 2, PcpTechnique::All);
        let pfn = kept(&frames, order, BlockPlace::Stack);
        let pin = frames.platform().pin();
        let movable = AllocRequest::new(order, TEST).movability(Migratetype::Movable);
        // What the list has of the same fetch would be allocated first.
        let set = dma32(&frames).pcp.mine(&pin);
        while set.lists.lock().peek(order, Migratetype::Movable).is_some() {
            frames.allocate(&pin, movable).unwrap();
        }
        dma32(&frames).lock(frames.platform()).isolate_block(frames.map(), page_block(pfn));
        let got = frames.allocate(&pin, movable).unwrap();
        assert!(!page_block(pfn).contains(got), "order {order}");
        assert_eq!(set.returned.pages(), 0, "the stack was looked through");
        assert_eq!(frames.known(pfn.block_start(order)).kind(), Kind::Free);
        assert_sound(&frames);
    }
}

/// CPU 1 returns `blocks`, single frames, to CPU 0. The caller runs on CPU 0 afterwards.
fn give_back(frames: &Frames<Machine>, blocks: &[Pfn]) {
    let set = dma32(frames).pcp.get(CpuId::default()).unwrap();
    set.returned.set_accepts(set.returned.pages() + blocks.len() as u64);
    run_on(1);
    let pin = frames.platform().pin();
    for &pfn in blocks {
        frames.gather(&mut FrameChain::new(), pfn, Order::ZERO).unwrap();
        assert!(Surplus::new(frames).free_past_lists(
            &pin,
            dma32(frames),
            frames.map().index(pfn),
            Order::ZERO
        ));
    }
    run_on(0);
}

/// A hazard of docs/hazards.md: "all that others returned is sorted under one hold". A request of another
/// order sorts a part of it, and what is left comes out with what is returned later: to a drain and to the
/// ticks of an idle CPU.
#[test]
fn a_miss_sorts_a_bounded_part_of_what_others_returned() {
    const COUNT: u64 = 300;
    let frames = frames(&[(0, FRAMES)], 2, PcpTechnique::All);
    let movable = AllocRequest::new(Order::ZERO, TEST).movability(Migratetype::Movable);
    let large = Order::ALL[3];
    for ticks in [false, true] {
        run_on(0);
        let pin = frames.platform().pin();
        let blocks: Vec<Pfn> = (0..2 * COUNT).map(|_| frames.allocate(&pin, movable).unwrap()).collect();
        let (early, late) = blocks.split_at(COUNT as usize);
        give_back(&frames, early);
        let taken = frames.allocate(&pin, movable.order(large)).unwrap();
        let set = dma32(&frames).pcp.mine(&pin);
        let left = set.lists.lock().incoming_pages();
        assert!((COUNT - CHUNK_BLOCKS as u64..COUNT).contains(&left), "{left} of {COUNT} wait to be sorted");
        give_back(&frames, late);
        assert_eq!((set.lists.lock().incoming_pages(), set.returned.pages()), (left, COUNT));
        assert_sound(&frames);
        if ticks {
            for _ in 0..=FramePcp::<Machine>::TICKS_TO_EMPTY {
                frames.pcp().age_lists(&pin);
            }
        } else {
            frames.pcp().drain_all(&pin);
        }
        assert_eq!((set.lists.lock().pages(), set.returned.pages()), (0, 0), "with ticks: {ticks}");
        frames.free(&pin, taken, large).unwrap();
        frames.pcp().drain_all(&pin);
    }
    assert_sound(&frames);
}

/// Hazard: a thread looks for the head lock of a folio that is split, and gets it when the first frame is
/// another owner's, who frees it at this moment. The thread may be stopped before it gives it back, so the
/// owner does not wait; the frame is not lost, and its next owner has its lock alone.
#[test]
fn a_frame_is_freed_while_its_lock_is_looked_at() {
    let frames = frames(&[(0, FRAMES)], 1, PcpTechnique::default());
    let pin = frames.platform().pin();
    let table = AllocRequest::new(Order::ZERO, TEST).kind(Kind::Table);
    let pfn = frames.allocate(&pin, table).unwrap();
    let lock = frames.known(pfn).lock_word();
    assert!(lock.try_look());
    frames.free(&pin, pfn, Order::ZERO).unwrap();
    assert_eq!(frames.allocate(&pin, table).unwrap(), pfn, "the list hands out what it got last");
    at_the_next_wait({
        let lock = ptr::from_ref(lock).expose_provenance();
        move || {
            let lock = ptr::with_exposed_provenance::<RawSpin>(lock);
            // SAFETY: the memory map is there until the test is through; taken above.
            unsafe { (*lock).give_back() };
        }
    });
    frames.known(pfn).as_table().lock::<Machine>(LockClass::PteTable);
    assert!(lock.is_locked() && !lock.try_look());
    assert_eq!(frames.free(&pin, pfn, Order::ZERO), Err(FreeError::Locked));
    // SAFETY: taken above.
    unsafe { frames.known(pfn).as_table().unlock::<Machine>(LockClass::PteTable) };
    frames.free(&pin, pfn, Order::ZERO).unwrap();
    assert_sound(&frames);
}

/// Hazard: the same where the frame is an inner one of a block by then.
#[test]
fn a_block_is_freed_while_the_lock_of_an_inner_frame_is_looked_at() {
    let frames = frames(&[(0, FRAMES)], 1, PcpTechnique::default());
    let pin = frames.platform().pin();
    let order = Order::ALL[3];
    let pfn = frames.allocate(&pin, AllocRequest::new(order, TEST)).unwrap();
    frames.known(pfn).set_flags(FrameFlags::TAILS_IN_USE);
    let lock = frames.known(pfn.offset(5)).lock_word();
    assert!(lock.try_look());
    frames.free(&pin, pfn, order).unwrap();
    // SAFETY: taken above.
    unsafe { lock.give_back() };
    assert_sound(&frames);
}
