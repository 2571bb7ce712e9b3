//! Long random sequences of operations, compared with a sorted map and linear scans after every step.

use super::super::{Entry, InsertError, SetRangeError, Writer};
use super::support::{TestStore, TestTree, Value, value};
use proptest::prelude::*;
use quire_arch::{PAGE_SIZE, VirtAddr, VirtRange};
use std::collections::BTreeMap;
use std::vec::Vec;

/// Pages that the operations play in.
const PAGES: u64 = 900;

/// The entries by start.
type Model = BTreeMap<u64, Entry<Value>>;

#[derive(Clone, Debug)]
enum TreeStep {
    Insert { page: u64, count: u64 },
    Remove { pick: usize },
    SetRange { pick: usize, page: u64, count: u64 },
    Grow { pick: usize, before: i64, after: i64 },
    Reserve { inserts: usize },
}

fn any_step() -> impl Strategy<Value = TreeStep> {
    prop_oneof![
        10 => (0..PAGES, 1u64..3).prop_map(|(page, count)| TreeStep::Insert { page, count }),
        5 => any::<usize>().prop_map(|pick| TreeStep::Remove { pick }),
        1 => (any::<usize>(), 0..PAGES, 0u64..9).prop_map(|(pick, page, count)| TreeStep::SetRange { pick, page, count }),
        3 => (any::<usize>(), -2i64..3, -2i64..3)
            .prop_map(|(pick, before, after)| TreeStep::Grow { pick, before, after }),
        1 => (0usize..8).prop_map(|inserts| TreeStep::Reserve { inserts }),
    ]
}

fn overlaps(model: &Model, range: VirtRange, besides: Option<u64>) -> bool {
    model.values().any(|entry| entry.range.overlaps(range) && Some(entry.range.start().0) != besides)
}

fn picked(model: &Model, pick: usize) -> Option<Entry<Value>> {
    model.values().nth(pick % model.len().max(1)).copied()
}

/// Every maximal free piece within `within`, lowest first.
fn gaps(model: &Model, within: VirtRange) -> Vec<VirtRange> {
    let mut from = VirtAddr(0);
    let mut gaps = Vec::new();
    for entry in model.values() {
        gaps.push(VirtRange::new(from, entry.range.start()).intersect(within));
        from = entry.range.end();
    }
    gaps.push(VirtRange::new(from, VirtAddr(u64::MAX)).intersect(within));
    gaps
}

fn set_range(
    writer: &mut Writer<'_, Value, TestStore>,
    model: &mut Model,
    old: Entry<Value>,
    new: VirtRange,
) {
    let start = old.range.start().0;
    let between = |entry: &Entry<Value>| {
        (entry.range.start() < old.range.start()) != (entry.range.start() < new.start())
    };
    let others = || model.values().filter(|entry| **entry != old);
    let expected = if new.is_empty() {
        Err(SetRangeError::BadRange)
    } else if overlaps(model, new, Some(start)) || others().any(between) {
        Err(SetRangeError::Overlap)
    } else {
        Ok(())
    };
    assert_eq!(writer.set_range(old.range.start(), new), expected);
    if expected.is_ok() {
        model.remove(&start);
        model.insert(new.start().0, Entry { range: new, value: old.value });
    }
}

fn compare(writer: &Writer<'_, Value, TestStore>, model: &Model, probe: u64, other: u64, len: u64) {
    writer.validate().unwrap();
    assert_eq!(writer.len(), model.len());
    let addr = VirtAddr(probe);
    let after = model.values().find(|entry| entry.range.end() > addr).copied();
    assert_eq!(writer.first_ending_after(addr), after);
    assert_eq!(writer.find(addr), after.filter(|entry| entry.range.contains(addr)));
    let before = model.range(..probe).next_back().map(|(_, entry)| *entry);
    assert_eq!(writer.last_starting_before(addr), before);
    let below = model.values().rfind(|entry| entry.range.end() <= addr).copied();
    assert_eq!(writer.beside(addr), (below, after));
    assert_eq!(writer.first(), model.values().next().copied());
    assert_eq!(writer.last(), model.values().next_back().copied());

    let within = VirtRange::new(VirtAddr(probe.min(other)), VirtAddr(probe.max(other)));
    let gaps = gaps(model, within);
    let fits = |gap: &&VirtRange| gap.len() >= len.max(1);
    assert_eq!(writer.lowest_gap(len, within).as_ref(), gaps.iter().find(fits));
    assert_eq!(writer.highest_gap(len, within).as_ref(), gaps.iter().rev().find(fits));

    // An empty range shares no address with any entry, not even with one around it.
    let shares = |entry: &&Entry<Value>| !entry.range.intersect(within).is_empty();
    let inside: Vec<_> = model.values().filter(shares).copied().collect();
    assert_eq!(writer.entries(within).collect::<Vec<_>>(), inside);
    let mut back: Vec<_> = writer.entries(within).rev().collect();
    back.reverse();
    assert_eq!(back, inside);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_tree_agrees_with_a_sorted_map(
        base in prop_oneof![Just(0), Just(0x7000_0000_0000), Just(0u64.wrapping_sub((PAGES + 16) * PAGE_SIZE))],
        steps in prop::collection::vec((any_step(), 0..PAGES + 8, 0..PAGES + 8, 0u64..6, any::<bool>()), 1..900),
    ) {
        let mut stored = TestTree::default();
        let (_, store, mut writer) = stored.parts();
        let mut model = Model::new();
        let range = |page: u64, count: u64| {
            VirtRange::from_len(VirtAddr(base + page * PAGE_SIZE), count * PAGE_SIZE).expect("below the top")
        };
        for (number, (step, probe, other, len, inside)) in steps.into_iter().enumerate() {
            match step {
                TreeStep::Insert { page, count } => {
                    let entry = Entry { range: range(page, count), value: value(number) };
                    if overlaps(&model, entry.range, None) {
                        prop_assert_eq!(writer.insert(entry.range, entry.value), Err(InsertError::Overlap));
                    } else {
                        writer.insert(entry.range, entry.value).unwrap();
                        model.insert(entry.range.start().0, entry);
                    }
                }
                TreeStep::Remove { pick } => {
                    if let Some(entry) = picked(&model, pick) {
                        prop_assert_eq!(writer.remove(entry.range.start()), Some(entry));
                        model.remove(&entry.range.start().0);
                        prop_assert_eq!(writer.remove(entry.range.start()), None);
                    }
                }
                TreeStep::SetRange { pick, page, count } => {
                    if let Some(entry) = picked(&model, pick) {
                        set_range(&mut writer, &mut model, entry, range(page, count));
                    }
                }
                TreeStep::Grow { pick, before, after } => {
                    if let Some(entry) = picked(&model, pick) {
                        let page = (entry.range.start().0 - base) / PAGE_SIZE;
                        let first = page.saturating_add_signed(-before);
                        let end = (page + entry.range.pages()).saturating_add_signed(after);
                        set_range(&mut writer, &mut model, entry, range(first, end.saturating_sub(first)));
                    }
                }
                TreeStep::Reserve { inserts } => writer.reserve(inserts).unwrap(),
            }
            let at = |page: u64| base + page * PAGE_SIZE + if inside { 0x123 } else { 0 };
            compare(&writer, &model, at(probe), at(other), len * (PAGE_SIZE / 2));
        }
        writer.clear();
        prop_assert_eq!(store.nodes_out(), 0);
    }

    #[test]
    fn growing_and_shrinking_keeps_everything(
        mut grow in Just((0u64..600).collect::<Vec<_>>()).prop_shuffle(),
        shrink in Just((0u64..600).collect::<Vec<_>>()).prop_shuffle(),
        keep in 0usize..600,
    ) {
        let mut stored = TestTree::default();
        let mut writer = stored.writer();
        let mut model = Model::new();
        let entry = |number: u64| {
            let range = VirtRange::from_len(VirtAddr(number * 4 * PAGE_SIZE), (1 + number % 4) * PAGE_SIZE);
            Entry { range: range.expect("small"), value: value(number as usize) }
        };
        grow.truncate(keep);
        for &number in &grow {
            let entry = entry(number);
            writer.insert(entry.range, entry.value).unwrap();
            model.insert(entry.range.start().0, entry);
            compare(&writer, &model, number * 3 * PAGE_SIZE, number * 5 * PAGE_SIZE, number % 4 * PAGE_SIZE);
        }
        for number in shrink {
            let start = entry(number).range.start();
            prop_assert_eq!(writer.remove(start), model.remove(&start.0));
            compare(&writer, &model, number * 3 * PAGE_SIZE, number * 5 * PAGE_SIZE, number % 4 * PAGE_SIZE);
        }
        writer.clear();
    }
}
