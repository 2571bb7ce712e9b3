//! Loom models: flushes against CPUs that switch to and from a space, with their steps in every order (up to
//! a bound of preemptions) and every value that the orderings allow a load to see.
//!
//! One page, whose table entry names the frame that it maps. A CPU's TLB holds at most that translation,
//! under a lock: as between two instructions of a CPU, an interruption comes before an access or after it.
//! The thread that replaces the entry flushes and frees the old frame. Loom reports an access to a frame that
//! is not ordered before its end; one that comes after the end finds the mark.
//!
//! Run by `scripts/models.sh loom`.

use super::SpaceCpus;
use super::slot::{CpuSlot, clear_everywhere};
use loom::model::Builder;
use loom::sync::{Arc, Mutex};
use loom::thread;
use quire_arch::{CpuId, Execution};
use quire_sync::Watched;
use quire_sync::atomic::{AtomicU32, Ordering};
use std::ptr::NonNull;

struct Loom;

impl Execution for Loom {
    fn relax(_attempt: u32) {
        thread::yield_now();
    }
}

/// Runs `model` with each order of its steps. Deeper by LOOM_MAX_PREEMPTIONS.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.max(Some(preemptions));
    builder.max_branches = 20_000;
    builder.check(model);
}

fn cpu(number: usize) -> CpuId {
    CpuId::new(number).expect("a small number")
}

struct Model {
    cpus: SpaceCpus,
    /// The frame that the page's entry maps.
    entry: AtomicU32,
    /// What each CPU's TLB holds of the page.
    tlbs: [Mutex<Option<u32>>; 3],
    /// Whether each frame is free.
    frames: [Watched<bool>; 3],
}

impl Model {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            cpus: SpaceCpus::new(),
            entry: AtomicU32::new(0),
            tlbs: [(); 3].map(|()| Mutex::new(None)),
            frames: [(); 3].map(|()| Watched::new(false)),
        })
    }

    fn flush(&self, number: usize) {
        *self.tlbs[number].lock().expect("no model panics and goes on") = None;
    }

    /// Runs the space on a CPU for one access.
    fn visit(&self, number: usize) {
        self.cpus.enter(cpu(number), || self.flush(number));
        self.access(number);
        self.cpus.leave(cpu(number));
    }

    fn access(&self, number: usize) {
        let mut tlb = self.tlbs[number].lock().expect("no model panics and goes on");
        let frame = *tlb.get_or_insert_with(|| self.entry.load(Ordering::Acquire));
        assert!(!self.frames[frame as usize].get(), "an access to a frame that is free");
    }

    /// Maps `frame` in place of what is mapped, on a CPU, and frees that.
    fn replace(&self, number: usize, frame: u32) {
        let old = self.entry.swap(frame, Ordering::AcqRel);
        for target in self.cpus.reach(cpu(number)).running.iter() {
            self.flush(target.index());
        }
        self.frames[old as usize].set(true);
    }
}

fn spawn(model: &Arc<Model>, action: impl FnOnce(&Model) + 'static) -> thread::JoinHandle<()> {
    let model = Arc::clone(model);
    thread::spawn(move || action(&model))
}

/// The CPU runs the space, switches away, and switches back; the flush comes at any time.
#[test]
fn loom_a_cpu_that_comes_back_uses_nothing_stale() {
    check(4, || {
        let model = Model::new();
        let program = spawn(&model, |model| {
            model.visit(0);
            model.visit(0);
        });
        model.replace(1, 1);
        program.join().expect("no access was wrong");
    });
}

/// Two flushes at once, each of which may find the set cleared by the other, and a CPU that switches back.
#[test]
fn loom_two_flushes_at_once_both_count_for_a_cpu_that_comes_back() {
    check(3, || {
        let model = Model::new();
        model.visit(0);
        let others = [spawn(&model, |model| model.visit(0)), spawn(&model, |model| model.replace(1, 1))];
        model.replace(2, 2);
        for other in others {
            other.join().expect("no access was wrong");
        }
    });
}

/// Two flushes one after the other: the second finds nothing to clear.
#[test]
fn loom_a_flush_that_finds_nothing_to_clear_still_interrupts() {
    check(3, || {
        let model = Model::new();
        model.visit(0);
        let program = spawn(&model, |model| {
            model.visit(0);
            model.visit(0);
        });
        model.replace(1, 1);
        model.replace(1, 2);
        program.join().expect("no access was wrong");
    });
}

/// A CPU that flushes for itself keeps its bit, also against another one's flush.
#[test]
fn loom_a_cpu_that_flushes_itself_comes_back_without_harm() {
    check(3, || {
        let model = Model::new();
        let program = spawn(&model, |model| {
            model.cpus.enter(cpu(0), || model.flush(0));
            model.access(0);
            model.replace(0, 1);
            model.access(0);
            model.cpus.leave(cpu(0));
            model.visit(0);
        });
        model.replace(1, 2);
        program.join().expect("no access was wrong");
    });
}

/// A core that exits, and whether it is gone.
struct Core {
    cpus: SpaceCpus,
    gone: Watched<bool>,
}

struct Exit {
    core: Core,
    slot: CpuSlot<Core>,
}

/// The core of a space is not freed while a CPU that leaves the space still writes to it.
#[test]
fn loom_an_exit_waits_for_a_cpu_that_is_about_to_leave() {
    check(4, || {
        let exit = Arc::new(Exit {
            core: Core { cpus: SpaceCpus::new(), gone: Watched::new(false) },
            slot: CpuSlot::new(),
        });
        exit.core.cpus.enter(cpu(0), || ());
        exit.slot.replace(Some(NonNull::from(&exit.core)));
        let other = {
            let exit = Arc::clone(&exit);
            thread::spawn(move || {
                if let Some(left) = exit.slot.replace(None) {
                    // SAFETY: the model owns the core to its end.
                    let left = unsafe { left.as_ref() };
                    assert!(!left.gone.get(), "a core that is gone");
                    left.cpus.leave(cpu(0));
                }
            })
        };
        clear_everywhere::<Loom, _>(NonNull::from(&exit.core), &exit.core.cpus, |_| Some(&exit.slot));
        exit.core.gone.set(true);
        other.join().expect("the CPU left in time");
        assert!(exit.core.cpus.running().is_empty());
    });
}
