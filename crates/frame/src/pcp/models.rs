//! Loom models of the stack of returned blocks. `scripts/models.sh loom` runs them.

use super::returned::{ReturnChain, Returned};
use crate::kind::Kind;
use crate::map::{Frame, FrameIndex};
use crate::zone_id::ZoneId;
use loom::sync::Arc;
use loom::thread;
use quire_sync::atomic::force_failures;
use std::vec::Vec;

struct Stack {
    frames: Vec<Frame>,
    returned: Returned,
}

impl Stack {
    fn new(frames: usize, accepts: u64) -> Arc<Self> {
        let returned = Returned::new();
        returned.set_accepts(accepts);
        let frames = (0..frames).map(|_| Frame::new(Kind::Pcp, ZoneId::default())).collect();
        Arc::new(Self { frames, returned })
    }

    /// Returns the one block `index`.
    fn push(&self, index: u32) -> bool {
        let last = &self.frames[index as usize];
        self.returned.push(&ReturnChain { first: FrameIndex(index), last, pages: 1 })
    }

    /// The blocks that one take gives.
    fn take(&self) -> Vec<u32> {
        let Some((first, pages)) = self.returned.take() else { return Vec::new() };
        let mut found = Vec::new();
        let mut next = first.some();
        while let Some(index) = next {
            found.push(index.0);
            next = self.frames[index.0 as usize].next().some();
        }
        assert_eq!(found.len() as u64, pages, "the count is that of the blocks");
        found
    }
}

/// Two CPUs return blocks while the owner takes: each block comes out once, and none is lost. Every failure
/// of the compare-exchange that another CPU can cause happens in some interleaving.
#[test]
fn loom_returned_blocks_come_out_once() {
    loom::model(|| {
        let stack = Stack::new(2, 8);
        let pusher = {
            let stack = Arc::clone(&stack);
            thread::spawn(move || assert!(stack.push(0)))
        };
        // The owner comes last in the first interleaving. Loom remembers only the last access to a word,
        // which hides a load that comes before another thread's load and exchange.
        let owner = {
            let stack = Arc::clone(&stack);
            thread::spawn(move || stack.take())
        };
        assert!(stack.push(1));
        pusher.join().unwrap();
        let mut found = owner.join().unwrap();
        found.extend(stack.take());
        found.sort_unstable();
        assert_eq!(found, [0, 1]);
    });
}

/// The same where exchanges fail without a cause.
#[test]
fn loom_a_block_is_returned_though_exchanges_fail_for_no_reason() {
    loom::model(|| {
        force_failures(2);
        let stack = Stack::new(2, 8);
        let other = {
            let stack = Arc::clone(&stack);
            thread::spawn(move || assert!(stack.push(0)))
        };
        assert!(stack.push(1));
        other.join().unwrap();
        let mut found = stack.take();
        found.sort_unstable();
        assert_eq!(found, [0, 1]);
    });
}

/// The stack is taken and gets the same first block again while a pusher looks at it (ABA): the pusher's
/// block ends up in front of that block, and nothing that left the stack comes back.
#[test]
fn loom_a_stack_that_looks_the_same_again_is_the_same() {
    loom::model(|| {
        let stack = Stack::new(3, 8);
        assert!(stack.push(1) && stack.push(0));
        let pusher = {
            let stack = Arc::clone(&stack);
            thread::spawn(move || assert!(stack.push(2)))
        };
        let first = stack.take();
        // Block 0 was freed again by another thread; block 1 is in use.
        if first.contains(&0) {
            assert!(stack.push(0));
        }
        pusher.join().unwrap();
        let mut all = stack.take();
        all.extend(first.iter().filter(|&&index| index != 0));
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
    });
}

/// The bound holds whichever comes first: with room for one, one of two is refused.
#[test]
fn loom_no_more_is_returned_than_is_wanted() {
    loom::model(|| {
        let stack = Stack::new(2, 1);
        let other = {
            let stack = Arc::clone(&stack);
            thread::spawn(move || stack.push(0))
        };
        let mine = stack.push(1);
        assert_ne!(mine, other.join().unwrap());
        assert_eq!(stack.take().len(), 1);
    });
}
