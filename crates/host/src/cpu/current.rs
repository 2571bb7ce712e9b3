//! Which vCPUs the calling thread is.
//!
//! A thread is on a stack of CPUs: each call through a [`Vcpu`](crate::Vcpu) handle puts that CPU on top for
//! its duration, and a pinned section on a machine none of whose CPUs is in the stack puts a borrowed one
//! there. For each machine, the topmost of its CPUs is the thread's current one. The top is kept apart from
//! the rest, since it is nearly always the only one.
//!
//! An entry's pointer is followed only when its machine is known to live: because that machine is at hand and
//! its number, which is never used twice, is the entry's; or because the entry was made by a call through a
//! handle, which keeps the machine alive and cannot be left without removing the entry. (A borrowed entry
//! outlives its machine if a `Pin` is leaked by `mem::forget`.)

use super::{Cpu, Cpus, Owner};
use crate::counters::Event;
use crate::threads::thread_local;
use crate::wait::pause;
use core::cell::{Cell, RefCell};
use core::ptr;
use quire_arch::CpuId;

/// A CPU that the thread is on: of the machine that it uses now, or of one below.
#[derive(Clone, Copy)]
struct CurrentCpu {
    /// The machine's number; 0 is none's.
    machine: u64,
    cpu: *const Cpu,
    /// Held for a pinned section only.
    borrowed: bool,
    /// Whether there may be entries below.
    below: bool,
}

impl CurrentCpu {
    const NOWHERE: Self = Self { machine: 0, cpu: ptr::null(), borrowed: false, below: false };
}

thread_local! {
    static TOP: Cell<CurrentCpu> = const { Cell::new(CurrentCpu::NOWHERE) };
    static BELOW: RefCell<Vec<CurrentCpu>> = const { RefCell::new(Vec::new()) };
    /// The CPU that was borrowed last: probably free again, and its lists and caches are warm.
    static LAST_BORROWED: Cell<usize> = const { Cell::new(0) };
}

#[inline]
fn push(cpu: &Cpu, borrowed: bool) {
    let top = TOP.with(Cell::get);
    let below = top.machine != 0;
    if below {
        push_below(top);
    }
    TOP.with(|top| top.set(CurrentCpu { machine: cpu.machine, cpu, borrowed, below }));
}

#[cold]
fn push_below(top: CurrentCpu) {
    BELOW.with(|rest| rest.borrow_mut().push(top));
}

/// Removes the topmost place on `cpu`.
#[inline]
fn remove(cpu: *const Cpu) {
    let top = TOP.with(Cell::get);
    if top.cpu == cpu && !top.below {
        TOP.with(|top| top.set(CurrentCpu::NOWHERE));
    } else {
        remove_of_several(cpu);
    }
}

#[cold]
fn remove_of_several(cpu: *const Cpu) {
    BELOW.with(|rest| {
        let mut rest = rest.borrow_mut();
        if TOP.with(Cell::get).cpu == cpu {
            TOP.with(|top| top.set(rest.pop().unwrap_or(CurrentCpu::NOWHERE)));
        } else if let Some(index) = rest.iter().rposition(|place| place.cpu == cpu) {
            rest.remove(index);
        }
    });
}

/// Makes the topmost place on `cpu` a borrowed one.
#[cold]
fn turn_into_borrowed(cpu: *const Cpu) {
    let top = TOP.with(Cell::get);
    if top.cpu == cpu {
        TOP.with(|place| place.set(CurrentCpu { borrowed: true, ..top }));
    } else {
        BELOW.with(|rest| {
            let mut rest = rest.borrow_mut();
            if let Some(place) = rest.iter_mut().rev().find(|place| place.cpu == cpu) {
                place.borrowed = true;
            }
        });
    }
}

/// The thread's current CPU on the machine of `cpus`, or null.
#[inline(always)]
fn find(cpus: &Cpus) -> *const Cpu {
    TOP.with(|top| {
        let top = top.get();
        if top.machine == cpus.machine { top.cpu } else { find_below(cpus) }
    })
}

#[cold]
fn find_below(cpus: &Cpus) -> *const Cpu {
    let below = |rest: &RefCell<Vec<CurrentCpu>>| {
        rest.borrow()
            .iter()
            .rev()
            .find(|place| place.machine == cpus.machine)
            .map_or(ptr::null(), |place| place.cpu)
    };
    if TOP.with(Cell::get).below { BELOW.with(below) } else { ptr::null() }
}

/// Whether the topmost place on `cpu`, which is one of the thread's, is borrowed.
#[inline(always)]
fn is_borrowed(cpu: *const Cpu) -> bool {
    let top = TOP.with(Cell::get);
    if top.cpu == cpu { top.borrowed } else { is_borrowed_below(cpu) }
}

#[cold]
fn is_borrowed_below(cpu: *const Cpu) -> bool {
    BELOW.with(|rest| {
        rest.borrow().iter().rev().find(|place| place.cpu == cpu).is_some_and(|place| place.borrowed)
    })
}

/// The thread's current CPU on `machine`. Always a part of its callers: each operation pins a CPU, some
/// several times.
#[inline(always)]
fn owner(cpus: &Cpus) -> Option<Owner<'_>> {
    let cpu = find(cpus);
    if cpu.is_null() {
        return None;
    }
    // SAFETY: the CPU is of this machine, which lives, and a thread owns the CPUs of its places.
    Some(unsafe { Owner::assume(&*cpu) })
}

/// Starts a pinned section, on a borrowed CPU if the thread is on none. As for [`owner`].
#[inline(always)]
pub(crate) fn pin(cpus: &Cpus) -> CpuId {
    match owner(cpus) {
        Some(owner) => {
            owner.pin();
            owner.cpu().id
        }
        None => borrow(cpus),
    }
}

/// Ends a pinned section. As for [`owner`].
///
/// # Panics
///
/// When there was none.
#[inline(always)]
pub(crate) fn unpin(cpus: &Cpus) {
    let top = TOP.with(Cell::get);
    if top.machine != cpus.machine || top.borrowed {
        return unpin_other(cpus);
    }
    // SAFETY: as in `owner`. A place of a machine has a CPU of it.
    unsafe { Owner::assume(&*top.cpu) }.unpin();
}

/// The same if the thread's place is not the topmost one, or is a borrowed one.
#[cold]
#[inline(never)]
fn unpin_other(cpus: &Cpus) {
    let Some(owner) = owner(cpus) else {
        panic!("a pin is dropped by a thread that is on no CPU of its machine");
    };
    if owner.unpin() && is_borrowed(owner.cpu()) {
        owner.disown();
        remove(owner.cpu());
    }
}

#[cold]
fn borrow(cpus: &Cpus) -> CpuId {
    let count = cpus.len();
    let first = LAST_BORROWED.with(Cell::get);
    let mut attempt = 0;
    loop {
        // A CPU without a handle first: one with a handle may be wanted by it at any time.
        for claimed in [false, true] {
            for index in (first..first + count).map(|index| index % count) {
                let cpu = &cpus[index];
                if cpu.is_claimed() == claimed && cpu.door.try_own() {
                    LAST_BORROWED.with(|last| last.set(index));
                    push(cpu, true);
                    // SAFETY: `try_own` has just made this thread the owner.
                    unsafe { Owner::assume(cpu) }.pin();
                    cpu.counters.add(Event::Borrow);
                    return cpu.id;
                }
            }
        }
        pause(attempt);
        attempt = attempt.saturating_add(1);
    }
}

/// Whether `cpu` is the thread's current one on its machine, whose CPUs are `cpus`.
#[inline]
pub(crate) fn is_current(cpus: &Cpus, cpu: &Cpu) -> bool {
    ptr::eq(find(cpus), cpu)
}

/// Whether the thread is in a pinned section on `machine`.
#[inline]
pub(crate) fn is_pinned(cpus: &Cpus) -> bool {
    // Only the current CPU can be pinned: while one is, no other is made current.
    owner(cpus).is_some_and(Owner::is_pinned)
}

/// The thread on a CPU for the duration of a call through its handle.
#[derive(Debug)]
pub(crate) struct Stay<'v> {
    owner: Owner<'v>,
    /// How many stays the handle has, i.e. whether this one is the outermost.
    stays: &'v Cell<u64>,
}

impl<'v> Stay<'v> {
    /// Puts the thread on `cpu`, inside if `inside` and if it costs no second step. `stays` belongs to the
    /// CPU's only handle.
    ///
    /// # Panics
    ///
    /// When the thread is pinned on this machine.
    #[inline]
    pub(crate) fn begin(cpus: &Cpus, cpu: &'v Cpu, stays: &'v Cell<u64>, inside: bool) -> Self {
        if let Some(owner) = owner(cpus) {
            assert!(!owner.is_pinned(), "a vCPU is switched to, or a program runs, in a pinned section");
            // While the thread is on another of its CPUs it does not serve the mail of this one.
            owner.leave_guest();
        }
        // SAFETY: `own` below makes this thread the owner, or it is already: the handle, which is not shared
        // between threads, counts a stay.
        let owner = unsafe { Owner::assume(cpu) };
        if stays.get() == 0 {
            if inside && cpu.door.try_own_and_enter() {
                owner.entered();
            } else {
                own(cpu);
            }
        }
        stays.set(stays.get() + 1);
        push(cpu, false);
        Self { owner, stays }
    }

    #[inline]
    pub(crate) fn owner(&self) -> Owner<'v> {
        self.owner
    }
}

impl Drop for Stay<'_> {
    #[inline]
    fn drop(&mut self) {
        let stays = self.stays.get() - 1;
        self.stays.set(stays);
        if stays > 0 {
            self.owner.leave_guest();
        } else if self.owner.is_pinned() {
            // A pin left the call that it was made in. It keeps the CPU, as if it had borrowed it.
            turn_into_borrowed(self.owner.cpu());
            return;
        } else {
            self.owner.disown();
        }
        remove(self.owner.cpu());
    }
}

fn own(cpu: &Cpu) {
    let mut attempt = 0;
    while !cpu.door.try_own() {
        pause(attempt);
        attempt = attempt.saturating_add(1);
    }
}

/// Calls `wait` while others may use the CPUs that the thread is on, as they may when a thread sleeps or is
/// preempted. CPUs with pinned sections stay the thread's.
pub(crate) fn lend<R>(wait: impl FnOnce() -> R) -> R {
    struct TakeBack(Vec<*const Cpu>);
    impl Drop for TakeBack {
        fn drop(&mut self) {
            for &cpu in &self.0 {
                // SAFETY: a call through the CPU's handle is under way further up this thread's stack, so the
                // machine lives.
                own(unsafe { &*cpu });
            }
        }
    }
    let top = TOP.with(Cell::get);
    if top.machine == 0 {
        return wait();
    }
    let mut lent = TakeBack(Vec::new());
    let mut give = |place: &CurrentCpu| {
        // The same CPU may be in the stack twice.
        if place.borrowed || lent.0.contains(&place.cpu) {
            return;
        }
        // SAFETY: the place was made by a call through a handle, which is under way, so the machine lives;
        // and a thread owns the CPUs of its places.
        let owner = unsafe { Owner::assume(&*place.cpu) };
        if !owner.is_pinned() {
            owner.disown();
            lent.0.push(place.cpu);
        }
    };
    give(&top);
    if top.below {
        BELOW.with(|rest| rest.borrow().iter().for_each(give));
    }
    wait()
}
