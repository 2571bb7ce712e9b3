//! Processes that share the memory of the one that measures, as threads do: they fault in one address space.

use super::child::Child;
use super::memory::map;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

/// Bytes of stack: the work makes few calls.
const STACK: usize = 256 << 10;
/// The most at a time.
const MOST: usize = 8;

/// What one of them has to do.
struct Start<'w> {
    work: &'w (dyn Fn(usize) + Sync),
    number: usize,
}

extern "C" fn run(start: *mut c_void) -> c_int {
    // SAFETY: `beside` made it and waits for us.
    let start = unsafe { &*start.cast::<Start<'_>>() };
    (start.work)(start.number);
    0
}

/// Calls `work` with 1 to `sharers` in a process each, which share this one's memory, and with 0 here, all at
/// once. `None` if a process could not be made. The work allocates nothing and makes no call that needs the
/// library to know the thread.
pub(crate) fn beside(sharers: usize, work: &(dyn Fn(usize) + Sync)) -> Option<()> {
    let mut children = [None; MOST];
    let mut stacks = [None; MOST];
    let starts: [Start<'_>; MOST] = core::array::from_fn(|nth| Start { work, number: nth + 1 });
    let mut started = true;
    for nth in 0..sharers.min(MOST) {
        stacks[nth] = map(null_mut(), STACK, libc::MAP_PRIVATE);
        let Some(stack) = stacks[nth] else {
            started = false;
            break;
        };
        // SAFETY: the top of a stack of its own.
        let top = unsafe { stack.byte_add(STACK) };
        let start: *const Start<'_> = &raw const starts[nth];
        // SAFETY: `run` gets a start and a stack that stay until it has ended: it is waited for below.
        let pid = unsafe {
            libc::clone(run, top.as_ptr().cast(), libc::CLONE_VM | libc::SIGCHLD, start.cast_mut().cast())
        };
        children[nth] = Child::made(pid);
        if children[nth].is_none() {
            started = false;
            break;
        }
    }
    if started {
        work(0);
    } else {
        // Those that run wait for those that do not.
        children.into_iter().flatten().for_each(Child::kill);
    }
    for (child, stack) in children.into_iter().zip(stacks) {
        if let Some(child) = child {
            child.wait();
        }
        if let Some(stack) = stack {
            // SAFETY: no process runs on it any more.
            unsafe { libc::munmap(stack.as_ptr().cast(), STACK) };
        }
    }
    started.then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_process_works_on_the_same_memory() {
        let seen = [const { AtomicUsize::new(0) }; 3];
        beside(2, &|number| seen[number].store(number + 1, Ordering::Relaxed)).expect("two processes");
        assert_eq!(seen.map(|seen| seen.load(Ordering::Relaxed)), [1, 2, 3]);
    }
}
