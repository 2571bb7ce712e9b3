//! Loom models of the door. Run by `scripts/models.sh loom`.
//!
//! The machine in small: a page-table entry that names a frame, TLBs of one entry, and frames as cells that
//! programs read and that are overwritten when they are freed. Loom finds the read of a freed frame as a
//! wrong value, and the read that does not *happen before* the overwriting as a race.

use crate::door::{Cache, Door, Reached};
use crate::wait::pause;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use quire_arch::TlbFlush;
use quire_sync::Watched;

/// A TLB of one entry: the frame that the only page is at.
#[derive(Default)]
struct OneEntry(Option<usize>);

impl Cache for OneEntry {
    fn apply(&mut self, _flush: TlbFlush) {
        self.0 = None;
    }
}

struct Small {
    doors: Vec<Door<OneEntry>>,
    entry: AtomicUsize,
    frames: Vec<Watched<u32>>,
}

// SAFETY: none; whether the frames are shared soundly is what the models are to find out.
unsafe impl Sync for Small {}
// SAFETY: none; whether the frames are moved soundly is what the models are to find out.
unsafe impl Send for Small {}

const IN_USE: u32 = 7;
const FREED: u32 = 13;

impl Small {
    fn new(cpus: usize) -> Arc<Self> {
        Arc::new(Self {
            doors: (0..cpus).map(|_| Door::new(OneEntry::default())).collect(),
            entry: AtomicUsize::new(0),
            frames: (0..3).map(|_| Watched::new(IN_USE)).collect(),
        })
    }

    /// `accesses` program accesses on `cpu`, which the caller owns, as `Guest` makes them.
    fn run_program(&self, cpu: usize, accesses: usize) {
        let door = &self.doors[cpu];
        // SAFETY: the caller's thread owns the CPU and is outside.
        unsafe { door.enter() };
        for _ in 0..accesses {
            // SAFETY: inside since `enter`; the reference ends before the next use of the door.
            door.serve(unsafe { door.cache() });
            // SAFETY: inside since `enter`; the reference that `serve` had has ended.
            let cache = unsafe { door.cache() };
            let frame = *cache.0.get_or_insert_with(|| self.entry.load(Ordering::Acquire));
            assert_eq!(self.frames[frame].get(), IN_USE);
        }
        // SAFETY: inside, and no reference to the cache lives.
        unsafe { door.exit() };
    }

    /// Changes the entry, flushes `targets`, frees the old frame.
    fn replace(&self, new: usize, targets: &[usize]) {
        let old = self.entry.swap(new, Ordering::AcqRel);
        let waiting: Vec<usize> = targets
            .iter()
            .copied()
            .filter(|&target| self.doors[target].try_hold(|cache| cache.apply(TlbFlush::All)).is_none())
            .inspect(|&target| {
                self.doors[target].post(TlbFlush::All);
            })
            .collect();
        for target in waiting {
            let door = &self.doors[target];
            door.await_acknowledgement(door.newest());
        }
        self.free(old);
    }

    fn free(&self, frame: usize) {
        self.frames[frame].set(FREED);
    }

    fn own(&self, cpu: usize) {
        let mut attempt = 0;
        while !self.doors[cpu].try_own() {
            pause(attempt);
            attempt += 1;
        }
    }

    fn disown(&self, cpu: usize) {
        // SAFETY: the caller's thread owns the CPU and is outside.
        unsafe { self.doors[cpu].disown() };
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    // Deeper by LOOM_MAX_PREEMPTIONS.
    builder.preemption_bound = builder.preemption_bound.max(Some(preemptions));
    builder.max_branches = 3_000;
    builder.check(model);
}

/// Hazard: a frame is freed before the TLB shootdown is acknowledged.
#[test]
fn loom_a_frame_is_freed_only_when_no_program_can_use_it() {
    check(4, || {
        let small = Small::new(1);
        let program = {
            let small = Arc::clone(&small);
            thread::spawn(move || {
                small.own(0);
                small.run_program(0, 2);
                small.run_program(0, 1);
                small.disown(0);
            })
        };
        small.replace(1, &[0]);
        program.join().unwrap();
    });
}

/// Two initiators flush each other, each with a program of its own: both make progress.
#[test]
fn loom_initiators_that_shoot_at_each_other_get_through() {
    check(3, || {
        let small = Small::new(2);
        let other = {
            let small = Arc::clone(&small);
            thread::spawn(move || {
                small.own(1);
                small.run_program(1, 1);
                small.replace(2, &[0]);
                small.disown(1);
            })
        };
        small.own(0);
        small.run_program(0, 1);
        small.replace(1, &[1]);
        small.disown(0);
        other.join().unwrap();
    });
}

/// Two requests to one target at a time: neither is completed by the acknowledgement of the other. (Both come
/// from one thread: loom lets two waiting threads yield to each other forever.)
#[test]
fn loom_two_requests_at_one_target() {
    check(4, || {
        let small = Small::new(1);
        let program = {
            let small = Arc::clone(&small);
            thread::spawn(move || {
                small.own(0);
                small.run_program(0, 3);
                small.disown(0);
            })
        };
        let door = &small.doors[0];
        let request = |new| {
            let old = small.entry.swap(new, Ordering::AcqRel);
            (old, door.post(TlbFlush::All).0)
        };
        for (old, number) in [request(1), request(2)] {
            door.await_acknowledgement(number);
            small.free(old);
        }
        program.join().unwrap();
    });
}

/// A CPU changes owners while another thread flushes it: no owner is lost and none is added.
#[test]
fn loom_ownership_passes_a_flusher_by() {
    check(4, || {
        let small = Small::new(1);
        let owners = Arc::new(AtomicUsize::new(0));
        let take = |small: &Small, owners: &AtomicUsize| {
            small.own(0);
            assert_eq!(owners.fetch_add(1, Ordering::Relaxed), 0);
            owners.fetch_sub(1, Ordering::Relaxed);
            small.disown(0);
        };
        let other = {
            let (small, owners) = (Arc::clone(&small), Arc::clone(&owners));
            thread::spawn(move || take(&small, &owners))
        };
        let door = &small.doors[0];
        let (number, _) = door.post(TlbFlush::All);
        assert_eq!(door.await_acknowledgement(number), Reached::ByProxy);
        take(&small, &owners);
        other.join().unwrap();
    });
}
