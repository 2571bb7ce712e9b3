//! At which point of its window a call took effect.

use super::{PendingFault, Record, SpaceId};
use crate::calls::Effect;
use crate::sys::Tid;
use quire_trace::event::{Access, Denial, Mode, Outcome, TaskId};

/// A place in the order of events: just before, at, or just after a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) time: u64,
    side: Side,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Before,
    At,
    After,
}

impl Key {
    /// Where faults of this time are.
    pub(super) fn fault(time: u64) -> Self {
        Self { time, side: Side::At }
    }

    fn before(time: u64) -> Self {
        Self { time, side: Side::Before }
    }

    fn after(time: u64) -> Self {
        Self { time, side: Side::After }
    }
}

/// How a record finds its place in its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// At its end, whatever else is in the window.
    AtEnd,
    /// A call with this effect.
    Call(Effect),
    /// It made this thread, which can have faulted before its parent's exit stop was seen.
    Clone { child: Tid },
    /// It replaced the program. From `switched` on, the thread `pid` has the new address space, whose pages
    /// are part of the event; `pid` differs from the calling thread if that was not the leader.
    Exec { pid: Tid, switched: u64 },
    /// The thread was killed in exec, before its exec event. Nothing is recorded, but the kernel may have
    /// written to the new program's memory, as the thread or as `pid`, whose id it takes before.
    KilledExec { pid: Tid },
    /// A file became longer or shorter.
    Resized { grew: bool },
}

/// Finds the place of a record among the faults in its window. Faults that the event itself includes are
/// marked to be left out.
pub(super) fn place(record: &Record, faults: &mut [PendingFault]) -> Key {
    match record.rule {
        Rule::AtEnd => Key::after(record.end),
        Rule::Call(effect) => place_call(record, effect, faults),
        Rule::Clone { child } => {
            // The child's own faults, and those of the parent that write the child's id, come after.
            let mut late = faults.iter().filter(|fault| {
                fault.tid == child || fault.tid == record.tid && may_write(fault.fault.access)
            });
            late.next().map_or(Key::before(record.end), |fault| Key::before(fault.time))
        }
        Rule::Exec { pid, switched } => {
            leave_out_new_program(record.tid, pid, switched, faults);
            Key::after(record.end)
        }
        Rule::Resized { grew } => {
            let is_past_end =
                |fault: &&PendingFault| fault.fault.outcome == Outcome::Denied(Denial::NoBacking);
            let mut refused = faults.iter().filter(is_past_end);
            if grew {
                refused.next_back().map_or(Key::before(record.start), |fault| Key::after(fault.time))
            } else {
                refused.next().map_or(Key::after(record.end), |fault| Key::before(fault.time))
            }
        }
        Rule::KilledExec { pid } => {
            leave_out_new_program(record.tid, pid, u64::MAX, faults);
            Key::after(record.end)
        }
    }
}

/// Leaves out what a thread in exec touched of the new program's memory; from `switched` on, all is the new
/// program's.
fn leave_out_new_program(tid: Tid, pid: Tid, switched: u64, faults: &mut [PendingFault]) {
    for fault in faults.iter_mut().filter(|fault| fault.tid == tid || fault.tid == pid) {
        // The kernel reads arguments from the old program's memory, then writes to the new one's. An
        // unknown access is taken for one of the new program's: nothing can replay it there.
        let writes = fault.fault.mode == Mode::Kernel && may_write(fault.fault.access);
        if writes || fault.time >= switched {
            fault.leave_out();
        }
    }
}

fn may_write(access: Access) -> bool {
    matches!(access, Access::Write | Access::Unknown)
}

fn place_call(record: &Record, effect: Effect, faults: &[PendingFault]) -> Key {
    let mut key = match effect {
        Effect::Creates { .. } => Key::before(record.start),
        Effect::Removes { .. } | Effect::Neutral => Key::after(record.end),
    };
    for fault in faults.iter().filter(|fault| fault.space == record.space) {
        let inside = |start, end| (start..end).contains(&fault.fault.addr);
        if fault.tid == record.tid {
            // The kernel reads arguments before and writes results after it does its work.
            match fault.fault.access {
                Access::Write => key = key.min(Key::before(fault.time)),
                Access::Read | Access::Execute => key = key.max(Key::after(fault.time)),
                // Either: no constraint.
                Access::Unknown => {}
            }
            continue;
        }
        match effect {
            // Refused, so the memory was not there yet.
            Effect::Creates { start, end } if fault.was_denied() && inside(start, end) => {
                key = key.max(Key::after(fault.time));
            }
            // Refused, so the memory was unmapped already.
            Effect::Removes { start, end } if fault.was_denied() && inside(start, end) => {
                key = key.min(Key::before(fault.time));
            }
            _ => {}
        }
    }
    key
}

/// A task that no thread of a recording has.
pub(super) const LEFT_OUT: TaskId = TaskId(u32::MAX);

impl PendingFault {
    fn leave_out(&mut self) {
        self.task = LEFT_OUT;
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.task == LEFT_OUT
    }
}

/// No address space: that of events which belong to none.
pub(super) const NO_SPACE: SpaceId = SpaceId(u32::MAX);
