//! Loom models of the state word. Every interleaving is tried. `scripts/models.sh loom` runs them.

use super::descriptor::{Frame, LockCheck};
use super::migratetype::Migratetype;
use super::word::{FrameFlags, FrameState};
use crate::error::FreeError;
use crate::kind::Kind;
use crate::zone_id::ZoneId;
use loom::sync::Arc;
use loom::thread;
use quire_arch::Order;
use quire_sync::atomic::force_failures;

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
