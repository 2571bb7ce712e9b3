//! Trees whose every node is full: what a reservation must be enough for.

use super::super::Writer;
use super::support::{TestStore, TestTree, Value, pages, value};
use quire_arch::{PAGE_SIZE, VirtAddr};
use std::cmp::Reverse;
use std::vec::Vec;

/// The free pages between neighbouring entries, bottom and top included: first page and number.
fn gaps(writer: &Writer<'_, Value, TestStore>) -> Vec<(u64, u64)> {
    let mut starts: Vec<u64> = writer.iter().map(|entry| entry.range.start().0 / PAGE_SIZE).collect();
    starts.push(1 << 50);
    let mut from = 0;
    let gap = |start| {
        let gap = (from, start - from);
        from = start + 1;
        gap
    };
    starts.into_iter().map(gap).collect()
}

fn middle((first, count): (u64, u64)) -> u64 {
    first + count / 2
}

/// Adds entries wherever that takes the fewest nodes, until the tree would have to grow above `height`.
fn fill(writer: &mut Writer<'_, Value, TestStore>, store: &TestStore, height: usize) {
    store.budget.set(None);
    writer.insert(pages(1 << 49, 1), value(0)).unwrap();
    let mut budget = 0;
    loop {
        let mut added = false;
        let mut gaps = gaps(writer);
        // The widest first, so that none is used up before the tree is full.
        gaps.sort_by_key(|&(_, count)| Reverse(count));
        for gap in gaps {
            store.budget.set(Some(budget));
            if writer.insert(pages(middle(gap), 1), value(1)).is_ok() {
                added = true;
                if budget > 0 {
                    break;
                }
            }
        }
        budget = if added { 0 } else { budget + 1 };
        if writer.height() == height && budget > height {
            break;
        }
    }
    store.budget.set(None);
    assert_eq!((writer.len(), writer.height()), (15usize.pow(height as u32), height));
    writer.validate().unwrap();
}

fn reserve_covers(height: usize, inserts: usize, choose: impl Fn(usize, usize) -> usize, removing: bool) {
    let mut stored = TestTree::default();
    let (_, store, mut writer) = stored.parts();
    fill(&mut writer, store, height);
    writer.reserve(inserts).unwrap();
    store.budget.set(Some(0));
    for number in 0..inserts {
        let gaps = gaps(&writer);
        let place = middle(gaps[choose(number, gaps.len())]);
        writer.insert(pages(place, 1), value(number)).expect("it was reserved");
        writer.validate().unwrap();
        if removing && number % 2 == 1 {
            // As many as it takes to merge nodes around the place.
            for _ in 0..12 {
                let near = VirtAddr(place * PAGE_SIZE);
                let Some(victim) = writer.first_ending_after(near).or_else(|| writer.last()) else { break };
                writer.remove(victim.range.start()).expect("it was found");
                writer.validate().unwrap();
            }
        }
    }
    writer.clear();
}

#[test]
fn a_reservation_is_enough_for_insertions_anywhere() {
    for height in 1..=2 {
        for inserts in [1, 2, 3, 4, 5, 6, 9, 40] {
            for removing in [false, true] {
                reserve_covers(height, inserts, |_, _| 0, removing);
                reserve_covers(height, inserts, |_, count| count - 1, removing);
                reserve_covers(height, inserts, |number, count| number * count / inserts, removing);
                reserve_covers(height, inserts, |number, count| number * 7919 % count, removing);
            }
        }
    }
}

#[test]
fn a_reservation_is_enough_in_a_full_tree_of_three_levels() {
    reserve_covers(3, 2, |number, count| number * count / 2, false);
    reserve_covers(3, 4, |number, count| number * count / 4, true);
    reserve_covers(3, 40, |number, count| number * 7919 % count, true);
}

#[test]
fn a_reservation_outlives_the_removal_of_everything() {
    let mut stored = TestTree::default();
    let (_, store, mut writer) = stored.parts();
    writer.reserve(2).unwrap();
    store.budget.set(Some(0));
    writer.insert(pages(1, 1), value(0)).unwrap();
    writer.remove(pages(1, 1).start()).unwrap();
    writer.insert(pages(2, 1), value(1)).unwrap();
    writer.reserve(1).unwrap();
    writer.remove(pages(2, 1).start()).unwrap();
    writer.insert(pages(3, 1), value(1)).unwrap();
    writer.clear();
}
