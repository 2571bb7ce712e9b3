//! Folios: found from any of their frames, counted by their first descriptor, freed with the last reference.

#![cfg(not(loom))]

use crate::support::*;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

fn machine() -> Audited {
    frames(&[(0, 4096)], 2, PcpTechnique::All)
}

fn folio(frames: &Frames<Machine>, order: Order) -> Pfn {
    let pin = frames.platform().pin();
    frames.allocate(&pin, AllocRequest::new(order, TEST).kind(Kind::Anonymous)).expect("memory is free")
}

#[test]
fn every_frame_of_a_folio_finds_it() {
    let frames = machine();
    for order in Order::ALL {
        let head = folio(&frames, order);
        for pfn in (head.0..head.0 + order.pages()).map(Pfn) {
            let found = frames.folio(pfn);
            assert_eq!((found.head(), found.order()), (head, order), "from {pfn:?}");
            assert_eq!(found.pages_from(pfn), head.0 + order.pages() - pfn.0);
        }
    }
}

#[test]
fn parts_are_told_from_the_whole_and_from_the_last() {
    let frames = machine();
    let _pin = frames.platform().pin();
    let head = folio(&frames, Order::ALL[2]);
    let locked = frames.folios().lock_head(Pfn(head.0 + 3));
    assert!(locked.add_maps(4) && locked.add_maps(4));
    assert_eq!(locked.maps(), 8);
    assert_eq!(locked.remove_maps(4), MapsLeft::Some);
    assert_eq!(locked.remove_maps(3), MapsLeft::Part);
    assert_eq!(locked.remove_maps(1), MapsLeft::None);
    // All of it is unmapped, of which no part was before: only what is left is less.
    assert!(locked.add_maps(4) && locked.add_maps(3));
    assert_eq!(locked.remove_maps(4), MapsLeft::Part);
    assert_eq!(locked.remove_maps(3), MapsLeft::None);
    drop(locked);

    let small = frames.folios().lock_head(folio(&frames, Order::ZERO));
    assert!(small.add_maps(1) && small.add_maps(1));
    assert_eq!(small.remove_maps(1), MapsLeft::Some);
    assert_eq!(small.remove_maps(1), MapsLeft::None);
}

/// Hazard: a thread that waits for the head lock of a folio takes no notice of its split. The first frame is
/// a table by then, and the table's holder may wait for a lock of the thread's.
#[test]
fn a_late_head_lock_does_not_wait_for_who_reuses_the_frame() {
    let frames = &machine();
    let pin = frames.platform().pin();
    let head = folio(frames, Order::ALL[1]);
    // One reference is the mappings', and one is the splitting thread's.
    frames.known(head).as_folio().set_maps(1);
    assert!(frames.known(head).get(1));
    let locked = frames.folios().lock_head(head);
    let (waits, waiting) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let (done, is_done) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let _pin = frames.platform().pin();
            at_the_next_wait(move || {
                waits.send(()).expect("the test waits for it");
                goes_on.recv().expect("the test goes on");
            });
            let maps = frames.folios().lock_head(Pfn(head.0 + 1)).maps();
            // The test waits no more, if it is too late.
            let _ = done.send(maps);
        });
        waiting.recv().expect("it waits");
        let mut split = frames.folios().begin_split(locked);
        split.count_map(1);
        let mut chain = FrameChain::new();
        split.finish(Order::ZERO, 1, false, &mut chain).expect("no other thread has it");
        assert_eq!(frames.folios().put_folio(&mut chain, head, Order::ZERO), Ok(true));
        frames.free_chain(&pin, chain);
        let table = frames.allocate(&pin, ONE.kind(Kind::Table)).expect("memory is free");
        assert_eq!(table, head, "the list hands out what it got last");
        frames.known(table).as_table().lock::<Machine>(LockClass::PteTable);
        go_on.send(()).expect("it waits");
        let maps = is_done.recv_timeout(Duration::from_secs(20));
        // SAFETY: taken above.
        unsafe { frames.known(table).as_table().unlock::<Machine>(LockClass::PteTable) };
        assert_eq!(maps, Ok(1), "it waited for the table's holder");
        frames.free(&pin, table, Order::ZERO).expect("it is not locked");
    });
    let locked = frames.folios().lock_head(Pfn(head.0 + 1));
    assert_eq!(locked.remove_maps(1), MapsLeft::None);
    drop(locked);
    frames.free(&pin, Pfn(head.0 + 1), Order::ZERO).expect("nothing maps it");
}

/// Hazard: the checker of the order of locks learns of a head lock only when it was taken, and never of one
/// that is waited for without an end.
#[test]
#[should_panic(expected = "is taken under")]
fn a_head_lock_is_announced_before_it_is_waited_for() {
    let frames = machine();
    let _pin = frames.platform().pin();
    let head = folio(&frames, Order::ALL[1]);
    let _locked = frames.folios().lock_head(head);
    at_the_next_wait(|| panic!("it waits, and nothing was said"));
    let _again = frames.folios().lock_head(head);
}

#[test]
fn the_count_of_maps_does_not_overflow() {
    let frames = machine();
    let _pin = frames.platform().pin();
    for order in [Order::ZERO, Order::PMD] {
        let locked = frames.folios().lock_head(folio(&frames, order));
        assert!(locked.add_maps(MAX_MAPS - 1));
        assert!(!locked.add_maps(2));
        assert_eq!(locked.maps(), MAX_MAPS - 1);
        let _ = locked.remove_maps(MAX_MAPS - 1);
    }
}

#[test]
fn a_folio_goes_with_its_last_reference() {
    let frames = machine();
    let pin = frames.platform().pin();
    let order = Order::ALL[4];
    let head = folio(&frames, order);
    assert!(frames.known(head).get(1));
    let mut chain = FrameChain::new();
    assert_eq!(frames.folios().put_folio(&mut chain, head, order), Ok(false));
    assert_eq!((frames.known(head).refs(), chain.pages()), (1, 0));
    assert_eq!(frames.folios().put_folio(&mut chain, head, order), Ok(true));
    assert_eq!(chain.pages(), order.pages());
    frames.free_chain(&pin, chain);
}

/// Splits a folio of eight pages, with pages 4 and 5 not mapped, into parts of two.
fn split_listed(frames: &Frames<Machine>, list: impl FnMut(Pfn) -> PartIs) -> (Pfn, u64) {
    let head = folio(frames, Order::ALL[3]);
    let frame = frames.known(head);
    let flags = FrameFlags::LRU | FrameFlags::ACTIVE | FrameFlags::WORKINGSET | FrameFlags::LOCKED;
    frame.set_flags(flags);
    frame.as_folio().set_memcg(7);
    let pin = frames.platform().pin();
    let locked = frames.folios().lock_head(head);
    assert!(locked.add_maps(6));
    let mut split = frames.folios().begin_split(locked);
    [0, 1, 2, 3, 6, 7].into_iter().for_each(|nth| split.count_map(nth));
    let mut unmapped = FrameChain::new();
    split.finish_with(Order::ALL[1], 0, false, &mut unmapped, list).expect("no other reference is left");
    let pages = unmapped.pages();
    frames.free_chain(&pin, unmapped);
    (head, pages)
}

#[test]
fn parts_are_charged_and_listed_as_the_folio_was() {
    for listed in [false, true] {
        let frames = machine();
        let mut asked = Vec::new();
        let (head, unmapped) = split_listed(&frames, |part| {
            asked.push(part);
            if listed { PartIs::Listed } else { PartIs::Unlisted }
        });
        let part = |nth: u64| Pfn(head.0 + nth);
        assert_eq!((asked, unmapped), (vec![part(6), part(2)], 2));
        let kept = FrameFlags::ACTIVE | FrameFlags::WORKINGSET;
        let others = if listed { kept | FrameFlags::LRU } else { kept };
        for (nth, flags) in [(0, kept | FrameFlags::LRU | FrameFlags::LOCKED), (2, others), (6, others)] {
            let frame = frames.known(part(nth));
            let memcg = frame.as_folio().memcg();
            assert_eq!(
                (frame.word().flags(), frame.word().order(), memcg),
                (flags, Order::ALL[1], 7),
                "{nth}"
            );
        }
        let memcg = frames.known(part(4)).as_folio().memcg();
        assert_eq!(memcg, 0, "what is not mapped is freed and uncharged");
    }
}

#[test]
fn who_does_not_get_the_folio_lock_does_not_give_it_back() {
    let frames = machine();
    let head = folio(&frames, Order::ZERO);
    let held = frames.folios().try_lock_folio(head).expect("it is unlocked");
    assert!(frames.folios().try_lock_folio(head).is_none());
    assert!(frames.folios().try_lock_folio(head).is_none());
    drop(held);
    assert!(frames.folios().try_lock_folio(head).is_some());
}
