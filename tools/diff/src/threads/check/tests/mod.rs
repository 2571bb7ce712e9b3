//! Histories made by hand, right ones and wrong ones.

mod model;

use super::super::history::{ChildPage, Event, Outcome, Refusal};
use super::super::program::{Op, Rights, Span, Word};
use super::{HistoryVerdict, Side, Wrong};
use Outcome::{Done, Failed};

const MAPERR: Outcome = Outcome::Refused(Refusal::NotMapped);
const ACCERR: Outcome = Outcome::Refused(Refusal::Denied);
const ENOMEM: Outcome = Failed(12);
const EFAULT: Outcome = Failed(14);
const EINVAL: Outcome = Failed(22);

fn check(events: &[Event]) -> HistoryVerdict {
    super::check(events, Side::Quire)
}

fn span(first: u8, count: u8) -> Span {
    Span { first, count }
}

fn at(thread: u8, stamps: (u64, u64), op: Op, outcome: Outcome) -> Event {
    Event { thread, op, begin: stamps.0, end: stamps.1, outcome }
}

fn value(number: u8) -> Outcome {
    Outcome::Word(if number == 0 { Word::Zero } else { Word::Written(number) })
}

fn read(page: u8) -> Op {
    Op::Read { page }
}

fn write(page: u8, value: u8) -> Op {
    Op::Write { page, value }
}

fn map(first: u8, count: u8) -> Op {
    Op::Map { span: span(first, count), rights: Rights::Write, populate: false }
}

fn unmap(first: u8, count: u8) -> Op {
    Op::Unmap { span: span(first, count) }
}

fn protect(first: u8, count: u8, rights: Rights) -> Op {
    Op::Protect { span: span(first, count), rights }
}

fn dontneed(first: u8, count: u8) -> Op {
    Op::Drop { span: span(first, count) }
}

fn movement(first: u8, count: u8, to: u8) -> Op {
    Op::Move { from: span(first, count), to }
}

/// A history that begins with pages 0..4 mapped, before stamp 10.
fn after_map(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
    std::iter::once(at(0, (0, 1), map(0, 4), Done)).chain(events).collect()
}

/// Operations one after the other, by the threads that are named, from stamp 10 on.
fn in_turn(ops: impl IntoIterator<Item = (u8, Op, Outcome)>) -> Vec<Event> {
    let events = ops
        .into_iter()
        .zip(5..)
        .map(|((thread, op, outcome), turn)| at(thread, (2 * turn, 2 * turn + 1), op, outcome));
    after_map(events)
}

#[track_caller]
fn right(events: &[Event]) {
    assert_eq!(check(events), HistoryVerdict::Right, "{events:#?}");
}

#[track_caller]
fn wrong_page(page: u8, events: &[Event]) {
    match check(events) {
        HistoryVerdict::Wrong(Wrong::Page(found, _)) => assert_eq!(found, page, "{events:#?}"),
        other => panic!("{other:?}: {events:#?}"),
    }
}

#[test]
fn reads_see_the_last_write() {
    right(&in_turn([(0, read(0), value(0)), (1, write(0, 1), Done), (0, read(0), value(1))]));
    wrong_page(0, &in_turn([(0, write(0, 1), Done), (1, read(0), value(0))]));
    wrong_page(0, &in_turn([(0, write(0, 1), Done), (1, write(0, 2), Done), (0, read(0), value(1))]));
}

#[test]
fn a_value_of_another_page_is_wrong() {
    wrong_page(1, &in_turn([(0, write(0, 1), Done), (1, read(1), value(1))]));
    let foreign = Outcome::Word(Word::Foreign(0xbad));
    assert_eq!(check(&in_turn([(0, read(0), foreign)])), HistoryVerdict::Wrong(Wrong::Outcome(1)));
}

#[test]
fn operations_at_the_same_time_may_come_in_any_order() {
    for seen in [0, 1, 2] {
        right(&after_map([
            at(0, (10, 15), write(0, 1), Done),
            at(1, (11, 16), write(0, 2), Done),
            at(2, (12, 14), read(0), value(seen)),
        ]));
    }
    // Both orders of the writes at once cannot be.
    wrong_page(
        0,
        &after_map([
            at(0, (10, 15), write(0, 1), Done),
            at(1, (11, 16), write(0, 2), Done),
            at(2, (17, 18), read(0), value(1)),
            at(2, (19, 20), read(0), value(2)),
        ]),
    );
}

#[test]
fn nothing_is_seen_after_an_unmapping_has_returned() {
    right(&in_turn([
        (0, write(2, 1), Done),
        (1, unmap(1, 2), Done),
        (0, read(2), MAPERR),
        (0, read(3), value(0)),
    ]));
    wrong_page(2, &in_turn([(0, write(2, 1), Done), (1, unmap(1, 2), Done), (0, read(2), value(1))]));
    wrong_page(2, &in_turn([(1, unmap(2, 1), Done), (0, write(2, 1), Done)]));
    wrong_page(1, &in_turn([(1, unmap(2, 1), Done), (0, read(1), MAPERR)]));
}

#[test]
fn an_unmapping_under_way_may_be_seen_by_some_only() {
    let seen_late = |stamps| {
        after_map([
            at(0, (10, 20), unmap(0, 1), Done),
            at(1, (11, 12), read(0), MAPERR),
            at(2, stamps, read(0), value(0)),
        ])
    };
    right(&seen_late((13, 14)));
    wrong_page(0, &seen_late((21, 22)));
}

#[test]
fn a_new_mapping_is_fresh_at_once() {
    right(&in_turn([(0, write(0, 1), Done), (1, map(0, 1), Done), (0, read(0), value(0))]));
    wrong_page(0, &in_turn([(0, write(0, 1), Done), (1, map(0, 1), Done), (0, read(0), value(1))]));
    // Unlike `munmap`, it never shows a hole.
    wrong_page(0, &after_map([at(0, (10, 20), map(0, 1), Done), at(1, (11, 12), read(0), MAPERR)]));
}

#[test]
fn protections_hold_from_one_instant_on() {
    right(&in_turn([
        (1, protect(0, 1, Rights::Read), Done),
        (0, write(0, 1), ACCERR),
        (0, read(0), value(0)),
    ]));
    wrong_page(0, &in_turn([(1, protect(0, 1, Rights::Read), Done), (0, write(0, 1), Done)]));
    wrong_page(0, &in_turn([(1, protect(0, 1, Rights::None), Done), (0, read(0), value(0))]));
    wrong_page(0, &in_turn([(1, protect(1, 1, Rights::None), Done), (0, read(0), ACCERR)]));
    wrong_page(
        0,
        &after_map([
            at(0, (10, 20), protect(0, 1, Rights::Read), Done),
            at(1, (11, 12), write(0, 1), ACCERR),
            at(1, (13, 14), write(0, 2), Done),
        ]),
    );
}

#[test]
fn what_was_dropped_is_gone_when_the_call_returns() {
    right(&in_turn([(0, write(0, 1), Done), (1, dontneed(0, 1), Done), (0, read(0), value(0))]));
    wrong_page(0, &in_turn([(0, write(0, 1), Done), (1, dontneed(0, 1), Done), (0, read(0), value(1))]));
    // Meanwhile one CPU has the new page and another one the old.
    let old_after_new = |stamps| {
        after_map([
            at(0, (8, 9), write(0, 1), Done),
            at(0, (10, 20), dontneed(0, 1), Done),
            at(1, (11, 12), read(0), value(0)),
            at(2, stamps, read(0), value(1)),
        ])
    };
    right(&old_after_new((13, 14)));
    wrong_page(0, &old_after_new((21, 22)));
}

#[test]
fn a_write_is_lost_only_while_its_page_is_dropped() {
    let lost = |stamps, outcome| {
        after_map([
            at(0, (10, 20), dontneed(0, 1), Done),
            at(1, (11, 12), read(0), value(0)),
            at(2, stamps, write(0, 1), Done),
            at(1, (30, 31), read(0), outcome),
        ])
    };
    right(&lost((13, 14), value(1)));
    right(&lost((13, 14), value(0)));
    right(&lost((19, 22), value(0)));
    right(&lost((21, 22), value(1)));
    wrong_page(0, &lost((21, 22), value(0)));
}

#[test]
fn failed_calls_stop_where_they_failed() {
    let failed = |third: Outcome, first: Outcome| {
        in_turn([
            (0, unmap(1, 1), Done),
            (1, protect(0, 3, Rights::Read), ENOMEM),
            (0, write(2, 1), third),
            (0, write(0, 2), first),
        ])
    };
    right(&failed(Done, ACCERR));
    wrong_page(2, &failed(ACCERR, ACCERR));
    wrong_page(0, &failed(Done, Done));
    // No page was a hole.
    let call = check(&in_turn([(1, protect(0, 3, Rights::Read), ENOMEM)]));
    assert_eq!(call, HistoryVerdict::Wrong(Wrong::Call(1)));
    // The hole came and went while the call was under way, or too late.
    let hole = |stamps: (u64, u64)| {
        check(&after_map([
            at(0, (10, 13), protect(0, 3, Rights::Write), ENOMEM),
            at(1, stamps, unmap(1, 1), Done),
            at(1, (stamps.1 + 1, stamps.1 + 2), map(1, 1), Done),
        ]))
    };
    assert_eq!(hole((11, 12)), HistoryVerdict::Right);
    assert_eq!(hole((14, 15)), HistoryVerdict::Wrong(Wrong::Call(1)));
}

#[test]
fn the_pages_of_a_failed_call_must_agree() {
    // The first hole of the call is page 0 or page 2; page 1 says that it got past page 0.
    let first_hole = |outcome| {
        check(&after_map([
            at(0, (10, 20), protect(0, 3, Rights::Read), ENOMEM),
            at(1, (11, 12), unmap(0, 1), Done),
            at(2, (13, 14), unmap(2, 1), Done),
            at(1, (21, 22), map(0, 1), Done),
            at(1, (23, 24), write(1, 1), outcome),
        ]))
    };
    assert_eq!(first_hole(Done), HistoryVerdict::Right);
    assert_eq!(first_hole(ACCERR), HistoryVerdict::Right);
    // With page 0 there all the time, page 1 was changed.
    let second_hole = |outcome| {
        check(&in_turn([
            (0, unmap(2, 1), Done),
            (1, protect(0, 3, Rights::Read), ENOMEM),
            (1, write(1, 1), outcome),
        ]))
    };
    assert_eq!(second_hole(ACCERR), HistoryVerdict::Right);
    assert!(matches!(second_hole(Done), HistoryVerdict::Wrong(_)));
}

#[test]
fn locked_memory_is_not_dropped_and_locks_reach_their_pages() {
    let lock = Op::Lock { span: span(1, 2) };
    right(&in_turn([
        (0, write(0, 1), Done),
        (0, lock, Done),
        (1, dontneed(0, 4), EINVAL),
        (1, read(0), value(0)),
    ]));
    wrong_page(1, &in_turn([(0, lock, Done), (1, dontneed(0, 4), Done)]));
    let call = check(&in_turn([(1, dontneed(0, 4), EINVAL)]));
    assert_eq!(call, HistoryVerdict::Wrong(Wrong::Call(1)));
    // On Linux the lock may come between the drop and its flush; on Quire it may not. No thread has the page
    // after both.
    let beside = |mut seen: Vec<Event>| {
        let drop = at(0, (13, 18), dontneed(1, 1), Done);
        let mut events = vec![at(1, (10, 11), write(1, 5), Done), at(1, (14, 15), lock, Done), drop];
        events.append(&mut seen);
        let events = after_map(events);
        (super::check(&events, Side::Linux) == HistoryVerdict::Right, check(&events) == HistoryVerdict::Right)
    };
    assert_eq!(beside(vec![at(1, (16, 17), read(1), value(5))]), (true, false));
    assert_eq!(beside(vec![at(1, (16, 17), read(1), value(0))]), (true, true));
    let lost = [at(1, (16, 17), write(1, 6), Done), at(1, (19, 20), read(1), value(0))];
    assert_eq!(beside(lost.into()), (true, false));
    assert_eq!(beside(vec![at(1, (19, 20), read(1), value(5))]), (false, false));
    // What is unmapped after it was locked is passed over; what allows nothing by then is not.
    let locking =
        |op, outcome| check(&after_map([at(0, (10, 14), lock, outcome), at(1, (11, 12), op, Done)]));
    assert_eq!(locking(unmap(2, 1), Done), HistoryVerdict::Right);
    assert_eq!(locking(unmap(2, 1), ENOMEM), HistoryVerdict::Right);
    assert_eq!(locking(protect(2, 1, Rights::None), Done), HistoryVerdict::Right);
    assert_eq!(locking(protect(2, 1, Rights::None), ENOMEM), HistoryVerdict::Right);
    assert_eq!(locking(protect(2, 1, Rights::Read), ENOMEM), HistoryVerdict::Wrong(Wrong::Call(1)));
    // It failed while page 2 was missing: so it had not come to page 3, or it had locked all of them.
    let late = in_turn([(0, unmap(2, 1), Done), (1, lock, ENOMEM), (0, dontneed(1, 1), Done)]);
    wrong_page(1, &late);
}

#[test]
fn populating_fails_by_the_page_that_cannot_be_had() {
    let populate = |write| Op::Populate { span: span(0, 3), write };
    let after = |op, write, outcome| check(&in_turn([(0, op, Done), (1, populate(write), outcome)]));
    assert_eq!(after(unmap(1, 1), true, ENOMEM), HistoryVerdict::Right);
    assert_eq!(after(protect(1, 1, Rights::Read), true, EINVAL), HistoryVerdict::Right);
    assert_eq!(after(protect(1, 1, Rights::Read), false, EINVAL), HistoryVerdict::Wrong(Wrong::Call(2)));
    assert_eq!(after(unmap(1, 1), true, EINVAL), HistoryVerdict::Wrong(Wrong::Call(2)));
    assert!(matches!(after(unmap(1, 1), true, Done), HistoryVerdict::Wrong(Wrong::Page(1, _))));
}

#[test]
fn what_leaves_one_page_comes_to_the_other() {
    let moved = |seen| {
        in_turn([
            (0, write(0, 1), Done),
            (0, write(1, 2), Done),
            (1, movement(0, 2, 6), Done),
            (0, read(7), value(seen)),
            (0, read(0), MAPERR),
        ])
    };
    right(&moved(2));
    for seen in [0, 1] {
        assert!(matches!(check(&moved(seen)), HistoryVerdict::Wrong(_)), "{seen}");
    }
    // Along a chain, back to the start.
    let chain = |seen| {
        in_turn([
            (0, write(0, 1), Done),
            (0, movement(0, 1, 8), Done),
            (1, movement(8, 1, 5), Done),
            (1, movement(5, 1, 0), Done),
            (0, read(0), value(seen)),
        ])
    };
    right(&chain(1));
    assert!(matches!(check(&chain(0)), HistoryVerdict::Wrong(_)));
}

#[test]
fn a_move_takes_protection_and_lock_along_and_leaves_gaps_alone() {
    let lock = Op::Lock { span: span(0, 1) };
    let read_only = |outcome| {
        check(&in_turn([
            (0, protect(0, 1, Rights::Read), Done),
            (1, movement(0, 1, 7), Done),
            (0, write(7, 1), outcome),
        ]))
    };
    assert_eq!(read_only(ACCERR), HistoryVerdict::Right);
    assert!(matches!(read_only(Done), HistoryVerdict::Wrong(_)));
    let locked = |outcome| {
        check(&in_turn([(0, lock, Done), (1, movement(0, 1, 7), Done), (0, dontneed(7, 1), outcome)]))
    };
    assert_eq!(locked(EINVAL), HistoryVerdict::Right);
    assert!(matches!(locked(Done), HistoryVerdict::Wrong(_)));
    let gap = |outcome| {
        check(&in_turn([
            (0, map(8, 2), Done),
            (0, write(9, 1), Done),
            (0, unmap(1, 1), Done),
            (1, movement(0, 2, 8), Done),
            (0, read(9), outcome),
        ]))
    };
    assert_eq!(gap(value(1)), HistoryVerdict::Right);
    assert!(matches!(gap(MAPERR), HistoryVerdict::Wrong(_)));
}

#[test]
fn a_move_needs_its_first_page() {
    right(&in_turn([(0, unmap(0, 1), Done), (1, movement(0, 2, 6), EFAULT), (0, read(1), value(0))]));
    wrong_page(0, &in_turn([(1, movement(0, 2, 6), EFAULT)]));
    assert!(matches!(
        check(&in_turn([(0, unmap(0, 1), Done), (1, movement(0, 2, 6), Done)])),
        HistoryVerdict::Wrong(_)
    ));
    right(&in_turn([(1, movement(0, 2, 1), EINVAL)]));
    assert_eq!(check(&in_turn([(1, movement(0, 2, 1), Done)])), HistoryVerdict::Wrong(Wrong::Outcome(1)));
}

#[test]
fn a_page_is_in_both_places_only_while_it_moves() {
    let twice = |stamps| {
        check(&after_map([
            at(0, (10, 20), movement(0, 1, 7), Done),
            at(1, (11, 12), read(7), value(0)),
            at(2, stamps, write(0, 1), Done),
            at(1, (30, 31), read(7), value(1)),
        ]))
    };
    assert_eq!(twice((13, 14)), HistoryVerdict::Right);
    assert!(matches!(twice((21, 22)), HistoryVerdict::Wrong(_)));
}

#[test]
fn a_child_has_each_page_as_it_was_at_one_instant() {
    let pages = |first: u8| {
        let open = |number| ChildPage {
            read: Ok(if number == 0 { Word::Zero } else { Word::Written(number) }),
            write: Ok(()),
        };
        let hole = ChildPage { read: Err(Refusal::NotMapped), write: Err(Refusal::NotMapped) };
        let read_only = ChildPage { read: Ok(Word::Zero), write: Err(Refusal::Denied) };
        Outcome::Child(vec![open(first), hole, read_only])
    };
    let child = |first| {
        in_turn([
            (0, write(0, 1), Done),
            (0, unmap(1, 1), Done),
            (0, protect(2, 1, Rights::Read), Done),
            (1, Op::Fork, pages(first)),
        ])
    };
    right(&child(1));
    wrong_page(0, &child(0));
    wrong_page(2, &in_turn([(0, unmap(1, 1), Done), (1, Op::Fork, pages(0))]));
}
