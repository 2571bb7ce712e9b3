//! What the end of a write leaves of the folio's marks. The devices here say the truth.

use super::{Script, flags, two_devices};
use crate::common::machine::after_all_holds;
use crate::common::{Machine, assert_sound, folio};
use quire_arch::{LockClass, Order, Pfn, Platform};
use quire_frame::FrameFlags;
use quire_memcg::LruList;
use quire_swap::{DeviceError, DeviceFlags, IoState, Swap};
use std::cell::Cell;

const UNDER_WRITE: FrameFlags = FrameFlags::WRITEBACK.union(FrameFlags::RECLAIM);

/// As reclaim does it: the folio is to be freed when it is written.
fn mark(swap: &Swap<Machine>, head: Pfn) -> bool {
    let frame = swap.frames().known(head);
    frame.change_flags_if(FrameFlags::RECLAIM, FrameFlags::empty(), |word| {
        word.flags().contains(FrameFlags::WRITEBACK)
    })
}

/// A listed folio that a device is writing, and that is to be freed then.
fn under_write(swap: &Swap<Machine>, script: &Script) -> Pfn {
    let head = folio(swap, Order::ZERO);
    swap.memcgs().folios().list_folio(&swap.platform().pin(), head, LruList::InactiveAnon);
    swap.allocator().add_folio(head, 0).unwrap();
    assert_eq!(swap.io().write_folio(head), IoState::Begun);
    assert!(mark(swap, head) && flags(swap, head).contains(UNDER_WRITE));
    assert_eq!(script.last().pfn, head);
    head
}

/// Hazard: a write fails, and the mark stays until the folio is written once more.
#[test]
fn a_write_that_fails_leaves_no_mark_of_a_folio_to_be_freed() {
    let (swap, [own, _]) = two_devices(DeviceFlags::empty());
    let head = under_write(swap, &own);
    own.report(own.last(), Err(DeviceError::Io));
    assert_eq!(flags(swap, head) & (UNDER_WRITE | FrameFlags::DIRTY), FrameFlags::DIRTY);
    assert_sound(swap);
}

/// Hazard: reclaim finds a folio under writeback and marks it, when the end of the write has looked at the
/// mark already.
#[test]
fn a_mark_that_comes_while_the_write_ends_goes_with_it() {
    let (swap, [own, _]) = two_devices(DeviceFlags::empty());
    let head = under_write(swap, &own);
    let marks = Cell::new(2);
    let at_each_move = move |dropped| {
        if matches!(dropped, LockClass::Lru | LockClass::LruIncoming) && marks.get() > 0 {
            marks.set(marks.get() - 1);
            assert!(mark(swap, head), "it is still being written");
        }
    };
    after_all_holds(at_each_move, || own.report(own.last(), Ok(())));
    assert!(!flags(swap, head).intersects(UNDER_WRITE | FrameFlags::DIRTY));
    assert_sound(swap);
}
