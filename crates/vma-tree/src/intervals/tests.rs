//! The tree against a plain list.

use super::{IntervalLink, IntervalTree, Member, Side};
use proptest::prelude::*;
use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::vec::Vec;

/// The kind of the tree.
struct Only;

struct Item {
    place: IntervalLink<Self, Only>,
    /// The number of the step that gave it its first offset.
    came: Cell<u64>,
}

// SAFETY: the place is a field.
unsafe impl Member<Only> for Item {
    fn place(&self) -> &IntervalLink<Self, Only> {
        &self.place
    }
}

/// A tree, and what must be in it: each member with its offsets.
struct Both {
    tree: IntervalTree<Item, Only>,
    list: Vec<(Rc<Item>, u64, u64)>,
    steps: Cell<u64>,
}

impl Both {
    fn new() -> Self {
        Self { tree: IntervalTree::new(), list: Vec::new(), steps: Cell::new(0) }
    }

    fn insert(&mut self, first: u64, last: u64) {
        let item = Rc::new(Item { place: IntervalLink::new(), came: Cell::new(self.step()) });
        // SAFETY: one thread; the item is new, and the list keeps it until it is removed or the test ends.
        unsafe { self.tree.insert(NonNull::from(&*item), first, last) };
        self.list.push((item, first, last));
    }

    fn remove(&mut self, at: usize) {
        let (item, ..) = self.list.swap_remove(at);
        // SAFETY: one thread, and what is on the list is in the tree.
        unsafe { self.tree.remove(NonNull::from(&*item)) };
        // SAFETY: one thread.
        assert!(unsafe { !item.place.is_linked() });
    }

    fn change(&mut self, at: usize, first: u64, last: u64) {
        // SAFETY: as in `remove`.
        unsafe { self.tree.change(NonNull::from(&*self.list[at].0), first, last) };
        if self.list[at].1 != first {
            self.list[at].0.came.set(self.step());
        }
        (self.list[at].1, self.list[at].2) = (first, last);
    }

    fn step(&self) -> u64 {
        self.steps.set(self.steps.get() + 1);
        self.steps.get()
    }

    fn len(&self) -> u32 {
        // SAFETY: one thread.
        unsafe { self.tree.len() }
    }

    fn is_sound(&self) -> bool {
        // SAFETY: one thread; a link that a test damages leads nowhere.
        unsafe { self.tree.is_sound() }
    }

    /// Compares what holds the offsets with the list.
    fn check(&self, first: u64, last: u64) {
        assert!(self.is_sound());
        assert_eq!(self.len() as usize, self.list.len());
        // SAFETY: one thread.
        let found: Vec<_> = unsafe { self.tree.holding(first, last) }.collect();
        // SAFETY: one thread.
        let order =
            found.iter().map(|item| unsafe { (item.as_ref().place.interval().0, item.as_ref().came.get()) });
        assert!(order.is_sorted(), "not by their first offsets, or equal ones not as they came");
        let mut found: Vec<_> = found.iter().map(|item| item.as_ptr().cast_const()).collect();
        let holds = |(_, a, b): &&(_, u64, u64)| *a <= last && first <= *b;
        let mut wanted: Vec<_> = self.list.iter().filter(holds).map(|(item, ..)| Rc::as_ptr(item)).collect();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted, "offsets {first} to {last}");
    }

    fn depth(&self) -> u32 {
        let mut deepest = 0;
        for (item, ..) in &self.list {
            let mut depth = 0;
            let mut next = Some(NonNull::from(&**item));
            while let Some(item) = next {
                depth += 1;
                next = self.tree.place(item).parent.get();
            }
            deepest = deepest.max(depth);
        }
        deepest
    }
}

#[test]
fn an_empty_tree_holds_nothing() {
    let both = Both::new();
    // SAFETY: one thread.
    assert!(unsafe { both.tree.is_empty() });
    both.check(0, u64::MAX);
}

#[test]
fn one_offset_at_either_end_is_enough() {
    let mut both = Both::new();
    both.insert(10, 19);
    both.insert(0, u64::MAX);
    both.insert(10, 10);
    for (first, last) in [(9, 9), (10, 10), (11, 18), (19, 25), (20, 20), (0, 0), (u64::MAX, u64::MAX)] {
        both.check(first, last);
    }
}

/// Whatever the order of insertions is, and however the tree is emptied: the proven bound for these
/// parameters is log(n + 1) to the base 4/3.
#[test]
fn no_order_makes_the_tree_deep() {
    for order in 0..3 {
        let mut both = Both::new();
        for n in 0..1000 {
            let first = match order {
                0 => n,
                1 => 1000 - n,
                _ => n % 2 * 2000 + if n % 2 == 0 { n } else { 1000 - n },
            };
            both.insert(first, first + 3);
        }
        both.check(500, 600);
        assert!(both.depth() <= 24, "depth {}", both.depth());
        for left in (10..1000).rev() {
            both.remove(left % 7);
            if left % 50 == 0 {
                both.check(0, left as u64);
                let bound = f64::from(both.len() + 1).log(4.0 / 3.0);
                assert!(f64::from(both.depth()) <= bound, "depth {} for {}", both.depth(), both.len());
            }
        }
    }
}

#[test]
fn the_check_sees_what_is_wrong() {
    let mut both = Both::new();
    for n in 0..10 {
        both.insert(n, n + 5);
    }
    both.check(0, 3);
    let item = both.tree.root.get().unwrap();
    let place = both.tree.place(item);
    for (cell, wrong) in [(&place.reach, 99), (&place.first, 9), (&place.last, 0)] {
        let right = cell.replace(wrong);
        assert!(!both.is_sound());
        cell.set(right);
    }
    let size = place.size.replace(9);
    assert!(!both.is_sound());
    place.size.set(size);
    let left = place.at(Side::Left).unwrap();
    let parent = both.tree.place(left).parent.replace(None);
    assert!(!both.is_sound());
    both.tree.place(left).parent.set(parent);
    assert!(both.is_sound());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_agrees_with_a_list(
        steps in prop::collection::vec((0..10_u8, 0..64_u64, 0..20_u64, any::<prop::sample::Index>()), 1..200)
    ) {
        let mut both = Both::new();
        for (what, first, len, which) in steps {
            match what {
                0..=4 => both.insert(first, first + len),
                _ if both.list.is_empty() => {}
                5..=6 => both.remove(which.index(both.list.len())),
                7 => {
                    let at = which.index(both.list.len());
                    both.change(at, first, first + len);
                }
                _ => {
                    // Only the end changes.
                    let at = which.index(both.list.len());
                    let first = both.list[at].1;
                    both.change(at, first, first + len);
                }
            }
            both.check(first, first + len / 4);
        }
    }
}
