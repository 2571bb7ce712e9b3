//! `PR_SET_THP_DISABLE` and `PR_GET_THP_DISABLE` of a program whose transparent huge pages are off while it
//! is recorded.
//!
//! Linux skips the calls: the setting in the kernel is the recorder's. Each address space has a setting of
//! its own here, and the calls have the results that they would have without the recorder.

use super::Tracer;
use super::state::Entry;
use crate::launch::{EXCEPT_ADVISED, ThpOff};
use crate::merge::SpaceId;
use crate::sys::process::thp_disable;
use crate::sys::{Tid, ptrace};
use quire_trace::event::ThpDisable;

const EINVAL: i64 = -(libc::EINVAL as i64);
/// The result of a call, which is about the setting `now`; `None` if it is about anything else.
fn result(known: ThpOff, now: ThpDisable, entry: &Entry) -> Option<i64> {
    let [option, value, flags, fourth, fifth, _] = entry.args;
    if entry.number as i64 != libc::SYS_prctl {
        return None;
    }
    // Linux reads the low half of the option only.
    match option as i32 {
        libc::PR_SET_THP_DISABLE => {
            let flags_known =
                flags == 0 || flags == EXCEPT_ADVISED && value != 0 && known.knows_except_advised;
            Some(if flags_known && fourth == 0 && fifth == 0 { 0 } else { EINVAL })
        }
        libc::PR_GET_THP_DISABLE if [value, flags, fourth, fifth] == [0; 4] => Some(now as i64),
        libc::PR_GET_THP_DISABLE => Some(EINVAL),
        _ => None,
    }
}

/// The setting after a `PR_SET_THP_DISABLE` that succeeded.
fn after(value: u64, flags: u64) -> ThpDisable {
    match (value, flags) {
        (0, _) => ThpDisable::No,
        (_, EXCEPT_ADVISED) => ThpDisable::ExceptAdvised,
        _ => ThpDisable::Completely,
    }
}

impl Tracer<'_> {
    /// The first space has the setting of the recorder's caller.
    pub(super) fn begin_thp(&mut self, space: SpaceId) {
        if let Some(space) = self.spaces.get_mut(&space) {
            space.thp_disable = thp_disable();
        }
    }

    /// Has Linux skip a call that is about to be made, if it is to be emulated, and gives it its result.
    /// Returns whether it is.
    pub(super) fn skips_thp_call(&self, tid: Tid, entry: &Entry) -> bool {
        let Some(known) = self.thp_off else { return false };
        let space = self.tasks.get(&tid).and_then(|task| self.spaces.get(&task.space));
        let Some(result) = space.and_then(|space| result(known, space.thp_disable, entry)) else {
            return false;
        };
        // If this fails, the thread was killed and makes no call.
        ptrace::skip_call(tid, result).is_ok()
    }

    /// An emulated call has ended: from now on the program has another setting.
    pub(super) fn made_thp_call(&mut self, tid: Tid, args: &[u64; 6], result: i64) {
        let [option, value, flags, ..] = *args;
        if option as i32 != libc::PR_SET_THP_DISABLE || result != 0 {
            return;
        }
        let space = self.tasks.get(&tid).map(|task| task.space);
        if let Some(space) = space.and_then(|space| self.spaces.get_mut(&space)) {
            space.thp_disable = after(value, flags);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call's result and the setting after it.
    fn call(known: bool, now: ThpDisable, args: [u64; 5]) -> (i64, ThpDisable) {
        let [option, value, flags, fourth, fifth] = args;
        let entry = Entry::new(libc::SYS_prctl as u64, [option, value, flags, fourth, fifth, 7]);
        let result = result(ThpOff { knows_except_advised: known }, now, &entry).unwrap();
        let sets = option as i32 == libc::PR_SET_THP_DISABLE && result == 0;
        (result, if sets { after(value, flags) } else { now })
    }

    #[test]
    fn settings_are_taken_as_by_linux() {
        use ThpDisable::{Completely, ExceptAdvised, No};
        const HIGH: u64 = 1 << 32;
        for now in [No, Completely, ExceptAdvised] {
            for (args, (result, setting)) in [
                ([41, 0, 0, 0, 0], (0, No)),
                ([41, 1, 0, 0, 0], (0, Completely)),
                ([41 | HIGH, 2, 0, 0, 0], (0, Completely)),
                ([41, HIGH, 0, 0, 0], (0, Completely)),
                ([41, 1, 2, 0, 0], (0, ExceptAdvised)),
                ([41, u64::MAX, 2, 0, 0], (0, ExceptAdvised)),
                ([41, 0, 2, 0, 0], (EINVAL, now)),
                ([41, 0, 1, 0, 0], (EINVAL, now)),
                ([41, 1, 1, 0, 0], (EINVAL, now)),
                ([41, 1, 3, 0, 0], (EINVAL, now)),
                ([41, 1, 2 | HIGH, 0, 0], (EINVAL, now)),
                ([41, 1, 0, 1, 0], (EINVAL, now)),
                ([41, 0, 0, 0, 1], (EINVAL, now)),
                ([42, 0, 0, 0, 0], (now as i64, now)),
                ([42, 1, 0, 0, 0], (EINVAL, now)),
                ([42, 0, 0, 0, HIGH], (EINVAL, now)),
            ] {
                assert_eq!(call(true, now, args), (result, setting), "{args:x?}");
            }
            assert_eq!(call(false, now, [41, 1, 2, 0, 0]), (EINVAL, now), "a kernel without the flag");
            assert_eq!(call(false, now, [41, 1, 0, 0, 0]), (0, Completely));
        }
    }

    #[test]
    fn other_calls_are_made() {
        let none = |number, args| {
            result(ThpOff { knows_except_advised: true }, ThpDisable::No, &Entry::new(number, args))
        };
        assert_eq!(none(libc::SYS_prctl as u64, [65, 0, 0, 0, 0, 0]), None);
        assert_eq!(none(libc::SYS_mmap as u64, [41, 0, 0, 0, 0, 0]), None);
    }
}
