//! Every kind of damage, planted, is found.

use crate::chain::FrameChain;
use crate::frames::Frames;
use crate::kind::Kind;
use crate::map::{FrameIndex, FrameState, Migratetype, PAGEBLOCK_ORDER};
use crate::pcp::{PcpTechnique, ReturnChain};
use crate::request::AllocRequest;
use crate::testing::{Machine, TEST, assert_sound, frames, violations};
use crate::violation::{Counted, FrameViolation, ListName};
use crate::zone_id::ZoneKind;
use core::sync::atomic::Ordering;
use quire_arch::{LockClass, Order, Pfn, PfnRange, Platform};

const ONE: AllocRequest = AllocRequest::new(Order::ZERO, TEST);

fn machine(pcp: PcpTechnique) -> Frames<Machine> {
    frames(&[(0, 2048)], 1, pcp)
}

/// An allocated frame.
fn taken(frames: &Frames<Machine>) -> Pfn {
    frames.allocate(&frames.platform().pin(), ONE).unwrap()
}

/// A free block of the zone's lists, of more than one frame.
fn free_head(frames: &Frames<Machine>) -> FrameIndex {
    let zone = frames.zone(ZoneKind::Dma32.into()).lock(frames.platform());
    let orders = Order::ALL.into_iter().skip(1);
    let mut lists = orders.flat_map(|order| Migratetype::ALL.map(|kind| (order, kind)));
    lists.find_map(|(order, kind)| zone.list(order, kind).first()).unwrap()
}

#[track_caller]
fn finds(frames: &Frames<Machine>, wanted: impl Fn(&FrameViolation) -> bool) {
    let found = violations(frames);
    assert!(found.iter().any(wanted), "{found:#?}");
}

#[test]
fn a_sound_machine_has_no_violations() {
    for pcp in [PcpTechnique::None, PcpTechnique::OrderZero] {
        let frames = machine(pcp);
        assert_sound(&frames);
        taken(&frames);
        assert_sound(&frames);
    }
}

#[test]
fn lost_frames() {
    let frames = machine(PcpTechnique::None);
    let pfn = taken(&frames);
    for kind in [Kind::Free, Kind::Pcp, Kind::Limbo, Kind::Slab] {
        frames.known(pfn).set_word(FrameState::new(kind, Order::ZERO, Migratetype::Unmovable));
        finds(&frames, |found| *found == FrameViolation::Lost { pfn, kind });
    }
    frames.known(pfn).set_word(FrameState::given_out(Kind::Allocated, Order::ZERO, Migratetype::Unmovable));
    assert_sound(&frames);
    let mut chain = FrameChain::new();
    frames.gather(&mut chain, pfn, Order::ZERO).unwrap();
    drop(chain);
    finds(&frames, |found| *found == FrameViolation::Lost { pfn, kind: Kind::Gathered });
}

#[test]
fn a_frame_that_is_in_use_and_on_a_list() {
    let frames = machine(PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    let pfn = taken(&frames);
    frames.free(&pin, pfn, Order::ZERO).unwrap();
    frames.known(pfn).set_word(FrameState::given_out(Kind::Allocated, Order::ZERO, Migratetype::Unmovable));
    let kind = Kind::Allocated;
    finds(&frames, |found| *found == FrameViolation::Reached { pfn, kind, expected: 0, found: 1 });
    finds(&frames, |found| matches!(found, FrameViolation::WrongKind { expected: Kind::Pcp, .. }));
}

#[test]
fn broken_links() {
    let frames = machine(PcpTechnique::None);
    let _split = taken(&frames);
    let head = free_head(&frames);
    let pfn = frames.map().pfn(head);
    frames.map().at(head).set_prev(FrameIndex(77));
    finds(&frames, |found| matches!(found, FrameViolation::BrokenBackLink { pfn: at, .. } if *at == pfn));
    frames.map().at(head).set_prev(FrameIndex::NONE);
    // Out of the map, then to itself.
    frames.map().at(head).set_next(FrameIndex(1 << 30));
    finds(&frames, |found| matches!(found, FrameViolation::BadLink { .. }));
    frames.map().at(head).set_next(head);
    finds(&frames, |found| matches!(found, FrameViolation::WrongCount { what: Counted::Blocks(_), .. }));
}

#[test]
fn wrong_words_of_free_blocks() {
    let frames = machine(PcpTechnique::None);
    let _split = taken(&frames);
    let head = free_head(&frames);
    let (pfn, frame) = (frames.map().pfn(head), frames.map().at(head));
    let word = frame.word();
    let expected = word.migratetype();
    let found = Migratetype::Reclaimable;
    frame.set_word(FrameState::new(Kind::Free, word.order(), found));
    finds(&frames, |violation| {
        matches!(violation, FrameViolation::WrongMigratetype { pfn: at, expected: e, found: f, .. }
            if (*at, *e, *f) == (pfn, expected, found))
    });
    let larger = word.order().larger().unwrap();
    frame.set_word(FrameState::new(Kind::Free, larger, expected));
    finds(
        &frames,
        |violation| matches!(violation, FrameViolation::WrongOrder { found, .. } if *found == larger),
    );
    finds(&frames, |violation| matches!(violation, FrameViolation::BadTail { head, .. } if *head == pfn));
    frame.set_word(FrameState::new(Kind::Free, Order::MAX, expected));
    finds(&frames, |violation| *violation == FrameViolation::Misaligned { pfn, order: Order::MAX });
}

#[test]
fn a_page_block_that_changed_its_type_alone() {
    let frames = machine(PcpTechnique::None);
    frames.map().set_block_migratetype(Pfn(0), Migratetype::Reclaimable);
    finds(&frames, |found| {
        let what = Counted::Pageblocks(ZoneKind::Dma32.into(), Migratetype::Reclaimable);
        *found == FrameViolation::WrongCount { what, expected: 0, found: 1 }
    });
    finds(&frames, |found| matches!(found, FrameViolation::WrongMigratetype { .. }));
}

#[test]
fn buddies_that_were_not_joined() {
    let frames = machine(PcpTechnique::None);
    let pin = frames.platform().pin();
    let mut pair = [taken(&frames), taken(&frames)];
    pair.sort();
    assert_eq!(pair[0].buddy(Order::ZERO), pair[1]);
    frames.free(&pin, pair[0], Order::ZERO).unwrap();
    let word = frames.known(pair[0]).word();
    frames.known(pair[0]).set_word(FrameState::TAIL);
    frames.free(&pin, pair[1], Order::ZERO).unwrap();
    frames.known(pair[0]).set_word(word);
    let (pfn, order) = (pair[0], Order::ZERO);
    finds(&frames, |found| *found == FrameViolation::UnmergedBuddies { pfn, order });
}

#[test]
fn users_that_stayed_in_free_frames() {
    let frames = machine(PcpTechnique::None);
    let head = free_head(&frames);
    let (pfn, frame) = (frames.map().pfn(head), frames.map().at(head));
    frame.map_count().store(1, Ordering::Relaxed);
    finds(&frames, |found| matches!(found, FrameViolation::FreeButInUse { maps: 1, .. }));
    frame.map_count().store(0, Ordering::Relaxed);
    frame.lock_word().lock::<Machine>(LockClass::PteTable);
    finds(&frames, |found| matches!(found, FrameViolation::FreeButInUse { pfn: at, .. } if *at == pfn));
    // SAFETY: taken above.
    unsafe { frame.lock_word().unlock::<Machine>(LockClass::PteTable) };
    assert_sound(&frames);
    let inner = pfn.offset(1);
    frames.known(inner).map_count().store(1, Ordering::Relaxed);
    finds(&frames, |found| *found == FrameViolation::BadTail { head: pfn, pfn: inner, found: Kind::Tail });
}

#[test]
fn a_tail_without_a_block_and_a_block_on_boot_memory() {
    let frames = machine(PcpTechnique::None);
    let pfn = taken(&frames);
    frames.known(pfn).set_word(FrameState::TAIL);
    finds(&frames, |found| *found == FrameViolation::StrayTail { pfn });
    frames.known(pfn).set_word(FrameState::new(Kind::Reserved, Order::ZERO, Migratetype::Unmovable));
    finds(&frames, |found| matches!(found, FrameViolation::WrongCount { what: Counted::Reserved, .. }));
    finds(&frames, |found| matches!(found, FrameViolation::WrongCount { what: Counted::ZoneManaged(_), .. }));
}

#[test]
fn a_block_on_the_list_of_another_zone() {
    let border = 1 << 20;
    let frames = frames(&[(border - 8, border + 2048)], 1, PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    let pfn = frames.allocate(&pin, ONE.from_zone(ZoneKind::Dma32)).unwrap();
    let high = frames.allocate(&pin, ONE).unwrap();
    assert_eq!(ZoneKind::of(high), ZoneKind::Normal);
    frames.gather(&mut FrameChain::new(), pfn, Order::ZERO).unwrap();
    let index = frames.map().index(pfn);
    let set = frames.zone(ZoneKind::Normal.into()).pcp.mine(&pin);
    assert!(set.lists.lock().push_released(frames.map(), (index, frames.known(pfn)), pfn, Order::ZERO));
    finds(&frames, |found| matches!(found, FrameViolation::WrongZone { pfn: at, .. } if *at == pfn));
}

/// A drain was forgotten when the page block was isolated: once for a CPU's list, once for its stack of
/// returned blocks.
#[test]
fn a_block_that_a_cpu_keeps_in_an_isolated_page_block() {
    for on_stack in [false, true] {
        let frames = machine(PcpTechnique::All);
        let pin = frames.platform().pin();
        let pfn = taken(&frames);
        let zone = frames.zone(ZoneKind::Dma32.into());
        if on_stack {
            frames.gather(&mut FrameChain::new(), pfn, Order::ZERO).unwrap();
            frames.known(pfn).set_word(FrameState::new(Kind::Pcp, Order::ZERO, Migratetype::Unmovable));
            let returned = &zone.pcp.mine(&pin).returned;
            returned.set_accepts(1);
            let (first, last) = (frames.map().index(pfn), frames.known(pfn));
            assert!(returned.push(&ReturnChain { first, last, pages: 1 }));
        } else {
            frames.free(&pin, pfn, Order::ZERO).unwrap();
        }
        assert_sound(&frames);
        let start = pfn.block_start(PAGEBLOCK_ORDER);
        let block = PfnRange::new(start, start.offset(PAGEBLOCK_ORDER.pages()));
        zone.lock(frames.platform()).isolate_block(frames.map(), block);
        finds(&frames, |violation| {
            matches!(violation, FrameViolation::WrongMigratetype { pfn: at, list, found: Migratetype::Isolate, .. }
                if *at == pfn && matches!(list, ListName::Returned(..)) == on_stack)
        });
        frames.pcp().drain_all(&pin);
        assert_sound(&frames);
    }
}

#[test]
fn violations_can_be_read() {
    let list = ListName::Buddy(ZoneKind::Normal.into(), Order::MAX, Migratetype::Movable);
    let violation = FrameViolation::WrongCount { what: Counted::Blocks(list), expected: 3, found: 4 };
    assert_eq!(
        std::string::ToString::to_string(&violation),
        "blocks on Normal free list 10 Movable: kept 3, counted 4"
    );
}
