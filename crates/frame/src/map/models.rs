//! Loom models of the state word. Every interleaving is tried. `scripts/models.sh loom` runs them.

use super::descriptor::{Frame, LockCheck, SingleUnmapped, unmap_single};
use super::migratetype::Migratetype;
use super::word::{FrameFlags, FrameState};
use crate::error::FreeError;
use crate::kind::Kind;
use crate::zone_id::ZoneId;
use loom::sync::Arc;
use loom::thread;
use quire_arch::Order;
use quire_sync::atomic::{Ordering, force_failures};

fn given_out() -> Arc<Frame> {
    let frame = Frame::new(Kind::Tail, ZoneId::default());
    frame.set_word(FrameState::given_out(Kind::Allocated, Order::ZERO, Migratetype::Movable));
    Arc::new(frame)
}

/// A hazard of docs/hazards.md: a double free by two CPUs at once. One frees the frame, the other gets an
/// error.
#[test]
fn loom_of_two_frees_one_is_a_double_free() {
    loom::model(|| {
        let frame = given_out();
        let other = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || frame.release(Order::ZERO, LockCheck::MustBeFree))
        };
        let mut results = [frame.release(Order::ZERO, LockCheck::MustBeFree), other.join().unwrap()];
        results.sort_by_key(Result::is_err);
        assert_eq!(results, [Ok(()), Err(FreeError::DoubleFree)]);
        assert_eq!((frame.kind(), frame.refs()), (Kind::Gathered, 0));
    });
}

/// A spurious failure of a word's transition is retried: the free happens, once.
#[test]
fn loom_a_free_happens_though_exchanges_fail_for_no_reason() {
    loom::model(|| {
        force_failures(2);
        let frame = given_out();
        let other = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || frame.release(Order::ZERO, LockCheck::MustBeFree))
        };
        let mut results = [frame.release(Order::ZERO, LockCheck::MustBeFree), other.join().unwrap()];
        results.sort_by_key(Result::is_err);
        assert_eq!(results, [Ok(()), Err(FreeError::DoubleFree)]);
    });
}

/// A lock-free lookup that takes a reference while the owner frees the frame: either the reference is
/// taken and the free refused, or the frame is free and the reference refused.
#[test]
fn loom_a_reference_and_a_free_exclude_each_other() {
    loom::model(|| {
        let frame = given_out();
        let reader = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || frame.try_get())
        };
        let freed = frame.release(Order::ZERO, LockCheck::MustBeFree);
        let referenced = reader.join().unwrap();
        assert_ne!(freed.is_ok(), referenced);
        assert_eq!(frame.refs(), if referenced { 2 } else { 0 });
    });
}

/// Two owners drop their references: exactly one is the last.
#[test]
fn loom_one_put_is_the_last() {
    loom::model(|| {
        let frame = given_out();
        frame.get(1);
        let other = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || frame.put(1))
        };
        assert_ne!(frame.put(1), other.join().unwrap());
        assert_eq!(frame.refs(), 0);
    });
}

/// No transition loses what another one set: flags, kind and references live in one word.
#[test]
fn loom_flags_kind_and_references_do_not_overwrite_each_other() {
    loom::model(|| {
        let frame = given_out();
        let other = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || {
                frame.set_flags(FrameFlags::DIRTY);
                frame.get(1);
            })
        };
        frame.classify(Kind::Anonymous).unwrap();
        other.join().unwrap();
        let word = frame.word();
        assert_eq!((word.kind(), word.flags(), word.refs()), (Kind::Anonymous, FrameFlags::DIRTY, 2));
    });
}

/// A single page of private memory that `maps` entries map.
fn mapped(maps: u32) -> Arc<Frame> {
    let frame = given_out();
    frame.classify(Kind::Anonymous).unwrap();
    frame.map_count().store(maps, Ordering::Relaxed);
    frame
}

/// A hazard of docs/hazards.md: a page is taken while its entry is still there, and a fast pin finds it by
/// that. Either the pin has a reference and the page is not taken, or it gets none.
#[test]
fn loom_a_page_that_is_taken_is_not_pinned() {
    loom::model(|| {
        let frame = mapped(1);
        let pinner = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || frame.try_get_mapped(1024))
        };
        let taker = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || frame.take_single(false))
        };
        let (is_pinned, taken) = (pinner.join().unwrap(), taker.join().unwrap());
        assert_eq!(taken.is_taken(), !is_pinned, "{taken:?}");
        let (maps, refs) = if is_pinned { (1, 1025) } else { (0, 0) };
        assert_eq!((frame.map_count().load(Ordering::Relaxed), frame.refs()), (maps, refs));
    });
}

/// The last two mappings of a page go at once, in two processes: one of the two takes it.
#[test]
fn loom_the_last_of_two_mappings_takes_the_page() {
    fn unmap(frame: &Frame) -> SingleUnmapped {
        loop {
            match unmap_single(frame) {
                SingleUnmapped::Other => {}
                unmapped => return unmapped,
            }
        }
    }
    loom::model(|| {
        let frame = mapped(2);
        let other = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || unmap(&frame))
        };
        let one = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || unmap(&frame))
        };
        let mut unmapped = [one.join().unwrap(), other.join().unwrap()];
        unmapped.sort_by_key(|unmapped| unmapped.is_taken());
        assert_eq!(unmapped, [SingleUnmapped::Mapped, SingleUnmapped::Taken]);
        assert_eq!((frame.kind(), frame.map_count().load(Ordering::Relaxed)), (Kind::Gathered, 0));
    });
}

/// A thread maps a page by its name while the process that has the only entry for it unmaps it: with the
/// reference that it has, or the mark that it leaves, the page is not taken.
#[test]
fn loom_a_page_that_is_mapped_by_name_is_not_taken() {
    loom::model(|| {
        let frame = mapped(1);
        let mapper = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || {
                let found = frame.try_get_folio();
                if found {
                    frame.set_flags(FrameFlags::SHARED_BY_NAME);
                    frame.map_count().fetch_add(1, Ordering::AcqRel);
                    frame.put(1);
                }
                found
            })
        };
        let taker = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || frame.take_single(false))
        };
        let (is_mapped, taken) = (mapper.join().unwrap(), taker.join().unwrap());
        assert_eq!(taken.is_taken(), !is_mapped, "{taken:?}");
    });
}

/// A process forks while another that has the same page ends: no mapping is lost.
#[test]
fn loom_a_page_is_shared_and_unmapped_at_once() {
    loom::model(|| {
        let frame = mapped(2);
        let other = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || unmap_single(&frame))
        };
        let sharer = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || frame.share_single(1024, 1 << 31))
        };
        let (unmapped, is_shared) = (other.join().unwrap(), sharer.join().unwrap());
        assert!(is_shared);
        let maps = frame.map_count().load(Ordering::Relaxed);
        assert_eq!(maps, if unmapped == SingleUnmapped::Mapped { 2 } else { 3 }, "{unmapped:?}");
    });
}
