//! Who holds an opening, and who closes it.

use super::*;
use quire_vma_tree::intervals::{IntervalLink, Member};
use std::boxed::Box;
use std::thread;
use std::vec::Vec;

struct Mapping(IntervalLink<Self, crate::OfFile>);

// SAFETY: the place is a field.
unsafe impl Member<crate::OfFile> for Mapping {
    fn place(&self) -> &IntervalLink<Self, crate::OfFile> {
        &self.0
    }
}

fn open(mappings: &FileMappings<Mapping>) -> Opening<Mapping> {
    // SAFETY: tests keep the mappings for longer than the opening.
    unsafe { Opening::new(NonNull::from(mappings)) }
}

#[test]
fn the_last_holder_is_told_so() {
    let mappings = FileMappings::new();
    let opening = open(&mappings);
    opening.hold();
    assert_eq!(opening.holders(), 2);
    assert!(ptr::eq(opening.mappings(), &raw const mappings));
    // SAFETY: there are two holders, and both are this test.
    let last = unsafe { [opening.let_go(), opening.let_go()] };
    assert_eq!(last, [false, true]);
}

/// Hazard: of two threads that let the last holders go at once neither closes the file, or both do; and a
/// file that is put on the stack beside a thread that takes it is lost, or closed twice.
#[test]
fn each_opening_is_closed_once() {
    const OPENINGS: usize = 400;
    const THREADS: usize = 4;
    let mappings = FileMappings::new();
    let openings: Vec<_> = (0..OPENINGS).map(|_| Box::new(open(&mappings))).collect();
    for opening in &openings {
        (1..THREADS).for_each(|_| opening.hold());
    }
    let stack = ClosingStack::new();
    assert!(stack.is_empty() && stack.take().next().is_none());
    let mut closed: Vec<usize> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let mut closed = Vec::new();
                    for opening in &openings {
                        // SAFETY: each thread is a holder, and the openings live until all have ended.
                        if unsafe { opening.let_go() } {
                            // SAFETY: it was the last one.
                            unsafe { stack.push(NonNull::from(&**opening)) };
                        }
                        closed.extend(stack.take().map(|opening| opening.addr().get()));
                    }
                    closed
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    closed.sort_unstable();
    let mut all: Vec<_> = openings.iter().map(|opening| ptr::from_ref(&**opening).addr()).collect();
    all.sort_unstable();
    assert_eq!(closed, all);
    assert!(stack.is_empty());
}
