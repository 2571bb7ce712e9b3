//! The edges: of ranges, of nodes, of the address space.

use super::super::node::{Extent, NOWHERE};
use super::super::{InsertError, RangeTree, SetRangeError, TreeViolation, Writer};
use super::support::{Cpu, TestStore, TestTree, Value, contents, epoch, pages, value};
use quire_arch::{PAGE_SIZE, Platform, VirtAddr, VirtRange};
use quire_sync::EpochGuard;
use quire_sync::atomic::Ordering;
use std::format;
use std::ptr::NonNull;
use std::vec::Vec;

const EVERYTHING: VirtRange = VirtRange::new(VirtAddr(0), VirtAddr(u64::MAX));
/// The end of the highest page whose end can be written.
const TOP: u64 = u64::MAX - (PAGE_SIZE - 1);

fn with_tree(test: impl FnOnce(&RangeTree<Value>, &mut Writer<'_, Value, TestStore>, &TestStore)) {
    let mut stored = TestTree::default();
    let (tree, store, mut writer) = stored.parts();
    test(tree, &mut writer, store);
    writer.validate().unwrap();
    writer.clear();
    assert!(writer.is_empty() && writer.iter().next().is_none());
}

/// Entries of one page at every second page from page 1 on.
fn fill(writer: &mut Writer<'_, Value, TestStore>, order: impl Iterator<Item = u64>) {
    for number in order {
        writer.insert(pages(1 + number * 2, 1), value(number as usize)).unwrap();
        writer.validate().unwrap();
    }
}

fn look(tree: &RangeTree<Value>, guard: &EpochGuard<'_>, addr: u64) -> Option<NonNull<Value>> {
    // SAFETY: no node is retired: the tree does not change meanwhile.
    unsafe { tree.find_lockless(VirtAddr(addr), guard) }
}

#[test]
fn an_empty_tree_has_nothing_and_costs_nothing() {
    with_tree(|tree, writer, store| {
        assert_eq!(writer.find(VirtAddr(0)), None);
        assert_eq!(writer.first(), None);
        assert_eq!(writer.last(), None);
        assert_eq!(writer.height(), 0);
        assert_eq!(writer.remove(VirtAddr(0)), None);
        assert_eq!(writer.highest_gap(1, EVERYTHING), Some(EVERYTHING));
        assert_eq!(writer.lowest_gap(PAGE_SIZE, pages(3, 1)), Some(pages(3, 1)));
        assert_eq!(writer.lowest_gap(2 * PAGE_SIZE, pages(3, 1)), None);
        let (machine, epoch) = (Cpu(0), epoch(1));
        let pin = machine.pin();
        assert_eq!(look(tree, &epoch.enter(&pin), 0), None);
        assert_eq!(store.nodes_out(), 0);
        assert_eq!(format!("{tree:?}"), "RangeTree { len: 0, spare_nodes: 0, .. }");
    });
}

#[test]
fn bad_ranges_are_refused() {
    with_tree(|_, writer, _| {
        let at = |start, end| VirtRange::new(VirtAddr(start), VirtAddr(end));
        for bad in [at(0, 0), at(0x1000, 0x1000), at(0x1000, 0x1fff), at(0x1001, 0x3000)] {
            assert_eq!(writer.insert(bad, value(0)), Err(InsertError::BadRange));
        }
        writer.insert(pages(4, 2), value(0)).unwrap();
        for overlap in [pages(4, 2), pages(3, 2), pages(5, 9), pages(0, 9), pages(4, 1)] {
            assert_eq!(writer.insert(overlap, value(1)), Err(InsertError::Overlap));
        }
        assert_eq!(writer.set_range(pages(5, 1).start(), pages(4, 1)), Err(SetRangeError::Missing));
        assert_eq!(writer.set_range(pages(4, 1).start(), pages(4, 0)), Err(SetRangeError::BadRange));
        assert_eq!(contents(writer), [(4, 2)]);
    });
}

#[test]
fn neighbours_touch_without_overlapping() {
    with_tree(|tree, writer, _| {
        for (number, page) in [2, 1, 3].into_iter().enumerate() {
            writer.insert(pages(page, 1), value(number)).unwrap();
        }
        let found = |addr| writer.find(VirtAddr(addr)).map(|entry| entry.value);
        assert_eq!(found(0xfff), None);
        assert_eq!(found(0x1000), Some(value(1)));
        assert_eq!(found(0x1fff), Some(value(1)));
        assert_eq!(found(0x2000), Some(value(0)));
        assert_eq!(found(0x3fff), Some(value(2)));
        assert_eq!(found(0x4000), None);
        let (machine, epoch) = (Cpu(0), epoch(1));
        let pin = machine.pin();
        for addr in [0xfff, 0x1000, 0x1fff, 0x2000, 0x3fff, 0x4000, u64::MAX] {
            assert_eq!(look(tree, &epoch.enter(&pin), addr), found(addr));
        }
        assert_eq!(writer.lowest_gap(1, pages(1, 3)), None);
        assert_eq!(writer.highest_gap(1, pages(1, 3)), None);
    });
}

#[test]
fn an_entry_may_reach_to_the_top_of_the_addresses() {
    with_tree(|tree, writer, _| {
        let all = VirtRange::new(VirtAddr(0), VirtAddr(TOP));
        writer.insert(all, value(0)).unwrap();
        assert_eq!(writer.find(VirtAddr(TOP - 1)).unwrap().range, all);
        assert_eq!(writer.find(VirtAddr(u64::MAX)), None);
        assert_eq!(writer.first_ending_after(VirtAddr(u64::MAX)), None);
        assert_eq!(writer.last_starting_before(VirtAddr(u64::MAX)).unwrap().range, all);
        assert_eq!(writer.last_starting_before(VirtAddr(0)), None);
        let above = VirtRange::new(VirtAddr(TOP), VirtAddr(u64::MAX));
        assert_eq!(writer.highest_gap(1, EVERYTHING), Some(above));
        assert_eq!(writer.lowest_gap(1, EVERYTHING), Some(above));
        assert_eq!(writer.highest_gap(PAGE_SIZE, EVERYTHING), None);
        assert_eq!(writer.highest_gap(u64::MAX, EVERYTHING), None);
        let (machine, epoch) = (Cpu(0), epoch(1));
        let pin = machine.pin();
        assert_eq!(look(tree, &epoch.enter(&pin), u64::MAX), None);
        assert_eq!(look(tree, &epoch.enter(&pin), TOP - 1), Some(value(0)));
    });
}

#[test]
fn many_entries_below_the_top() {
    with_tree(|_, writer, _| {
        let at = |number: u64| {
            VirtRange::from_len(VirtAddr(TOP - (2 * number + 1) * PAGE_SIZE), PAGE_SIZE).unwrap()
        };
        for number in 0..40 {
            writer.insert(at(number), value(number as usize)).unwrap();
            writer.validate().unwrap();
        }
        assert_eq!(writer.last().unwrap().range.end(), VirtAddr(TOP));
        let gap = writer.highest_gap(PAGE_SIZE, EVERYTHING).unwrap();
        assert_eq!((gap.start(), gap.end()), (at(1).end(), at(0).start()));
        assert_eq!(
            writer.lowest_gap(1, VirtRange::new(at(9).start(), at(8).end())).unwrap().start(),
            at(9).end()
        );
    });
}

#[test]
fn a_small_space_is_one_node() {
    with_tree(|_, writer, store| {
        fill(writer, 0..14);
        writer.reserve(1).unwrap();
        assert_eq!((store.nodes_out(), writer.height()), (1, 1));
        writer.reserve(2).unwrap();
        assert_eq!(store.nodes_out(), 3);
    });
}

#[test]
fn nodes_split_wherever_the_new_entry_falls() {
    for at in 0..=15 {
        with_tree(|_, writer, store| {
            fill(writer, 0..15);
            writer.insert(pages(at * 2, 1), value(99)).unwrap();
            writer.validate().unwrap();
            assert_eq!((writer.len(), writer.height(), store.nodes_out()), (16, 2, 3));
            assert_eq!(writer.find(pages(at * 2, 1).start()).unwrap().value, value(99));
        });
    }
}

#[test]
fn rows_up_and_down_leave_nodes_well_filled() {
    for downwards in [false, true] {
        with_tree(|_, writer, store| {
            let order: Vec<u64> = if downwards { (0..1100).rev().collect() } else { (0..1100).collect() };
            fill(writer, order.into_iter());
            // 11 of 15 slots: 100 leaves, 10 nodes above them and the root, some of them not yet full.
            assert!(store.nodes_out() <= 115, "{} nodes", store.nodes_out());
        });
    }
}

#[test]
fn the_tree_shrinks_from_any_end() {
    const COUNT: u64 = 400;
    let up = |step| step;
    let down = |step| COUNT - 1 - step;
    // 229 has no factor in common with 400, so this visits every entry once.
    let mixed = |step| step * 229 % COUNT;
    for order in [&up as &dyn Fn(u64) -> u64, &down, &mixed] {
        with_tree(|_, writer, store| {
            fill(writer, 0..COUNT);
            assert_eq!(writer.height(), 3);
            for step in 0..COUNT {
                let number = order(step);
                let removed = writer.remove(pages(1 + number * 2, 1).start()).unwrap();
                assert_eq!(removed.value, value(number as usize));
                writer.validate().unwrap();
            }
            // One empty leaf stays for what comes.
            assert_eq!((writer.len(), writer.height(), store.nodes_out()), (0, 1, 1));
            assert_eq!(writer.highest_gap(1, EVERYTHING), Some(EVERYTHING));
            assert_eq!(writer.first(), None);
            assert_eq!(writer.last(), None);
            assert_eq!(writer.iter().next_back(), None);
            fill(writer, 0..1);
        });
    }
}

#[test]
fn bounds_move_up_to_the_neighbours() {
    with_tree(|_, writer, _| {
        fill(writer, 0..60);
        for number in 0..60 {
            let start = pages(1 + number * 2, 1).start();
            let wide = pages(number * 2, 3);
            // The neighbour below already reaches up to this one.
            let want = if number == 0 { wide } else { pages(1 + number * 2, 2) };
            if number > 0 {
                assert_eq!(writer.set_range(start, wide), Err(SetRangeError::Overlap));
            }
            if number < 59 {
                let further = pages(1 + number * 2, 3);
                assert_eq!(writer.set_range(start, further), Err(SetRangeError::Overlap));
            }
            writer.set_range(start, want).unwrap();
            writer.validate().unwrap();
        }
        assert_eq!(writer.lowest_gap(1, pages(0, 121)), None);
        let last = pages(1 + 59 * 2, 2);
        writer.set_range(last.start(), pages(1000, 5)).unwrap();
        assert_eq!(writer.highest_gap(1, pages(0, 1000)), Some(pages(119, 1000 - 119)));
    });
}

#[test]
fn gaps_at_both_ends_are_bounded_by_the_caller() {
    with_tree(|_, writer, _| {
        fill(writer, 0..40);
        // Used: pages 1, 3, ..., 79.
        assert_eq!(writer.highest_gap(PAGE_SIZE, pages(0, 100)), Some(pages(80, 20)));
        assert_eq!(writer.highest_gap(PAGE_SIZE, pages(0, 80)), Some(pages(78, 1)));
        assert_eq!(writer.highest_gap(PAGE_SIZE, pages(0, 1)), Some(pages(0, 1)));
        assert_eq!(writer.lowest_gap(PAGE_SIZE, pages(0, 100)), Some(pages(0, 1)));
        assert_eq!(writer.lowest_gap(PAGE_SIZE, pages(1, 99)), Some(pages(2, 1)));
        assert_eq!(writer.lowest_gap(2 * PAGE_SIZE, pages(0, 100)), Some(pages(80, 20)));
        assert_eq!(writer.lowest_gap(2 * PAGE_SIZE, pages(0, 81)), None);
        assert_eq!(writer.lowest_gap(PAGE_SIZE, pages(90, 0)), None);
    });
}

#[test]
fn entries_come_from_either_end_until_they_meet() {
    with_tree(|_, writer, _| {
        fill(writer, 0..50);
        let all: Vec<_> = writer.iter().map(|entry| entry.range).collect();
        let mut back: Vec<_> = writer.iter().rev().map(|entry| entry.range).collect();
        back.reverse();
        assert_eq!(all, back);
        let mut ends = writer.iter();
        let mut seen = 0;
        while let Some(low) = ends.next() {
            assert_eq!(low.range, all[seen]);
            if let Some(high) = ends.next_back() {
                assert_eq!(high.range, all[49 - seen]);
            }
            seen += 1;
        }
        assert_eq!(seen, 25);
        assert_eq!((ends.next(), ends.next_back()), (None, None));
        assert_eq!(writer.entries(pages(2, 1)).count(), 0);
        assert_eq!(writer.entries(pages(3, 3)).count(), 2);
        assert_eq!(format!("{:?}", writer.entries(pages(3, 1))).matches("0x3000-0x4000").count(), 1);
        assert!(format!("{writer:?}").starts_with("{0x1000-0x2000: "));
    });
}

#[test]
fn validation_finds_what_is_cached_wrong() {
    with_tree(|tree, writer, _| {
        fill(writer, 0..40);
        let root = writer.root_node().expect("not empty");
        let right = root.extent_of(1);
        root.set_extent(1, Extent { gap: right.gap + PAGE_SIZE, ..right });
        let cached_gap = TreeViolation::CachedGap { cached: 2 * PAGE_SIZE, real: PAGE_SIZE };
        assert_eq!(writer.validate(), Err(cached_gap));
        root.set_extent(1, Extent { end: right.end + PAGE_SIZE, ..right });
        assert!(matches!(writer.validate(), Err(TreeViolation::CachedRange { .. })));
        root.set_extent(1, Extent { start: root.start(0), ..right });
        assert!(matches!(writer.validate(), Err(TreeViolation::Order { .. })));
        root.set_extent(1, Extent { start: right.end, ..right });
        assert!(matches!(writer.validate(), Err(TreeViolation::BadRange(_))));
        root.set_extent(1, right);
        root.set_extent(14, right);
        assert_eq!(writer.validate(), Err(TreeViolation::NotWiped { level: 1, slot: 14 }));
        root.set_extent(14, Extent { start: NOWHERE, end: NOWHERE, gap: 0 });
        root.set_level(2);
        assert_eq!(writer.validate(), Err(TreeViolation::Level { expected: 1, found: 0 }));
        root.set_level(1);
        tree.len.store(41, Ordering::Relaxed);
        assert_eq!(writer.validate(), Err(TreeViolation::Count { expected: 41, found: 40 }));
        tree.len.store(40, Ordering::Relaxed);
    });
}
