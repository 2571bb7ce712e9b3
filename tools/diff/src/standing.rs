//! The privileges and limits of a process at the moment of a call, for the coverage.

use crate::program::Call;
use crate::program::names::{MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_LOCKED};
use quire_host::HostPlatform;
use quire_mm::space::{ExecGain, Rights, Space};

/// A limit up to here is small: programs reach it.
const SMALL: u64 = 1 << 20;

const LOCKS: [&str; 6] = [
    "CAP_IPC_LOCK, RLIMIT_MEMLOCK 0",
    "CAP_IPC_LOCK, small RLIMIT_MEMLOCK",
    "CAP_IPC_LOCK, large RLIMIT_MEMLOCK",
    "without CAP_IPC_LOCK, RLIMIT_MEMLOCK 0",
    "without CAP_IPC_LOCK, small RLIMIT_MEMLOCK",
    "without CAP_IPC_LOCK, large RLIMIT_MEMLOCK",
];
const LOW: [&str; 2] =
    ["below vm.mmap_min_addr with CAP_SYS_RAWIO", "below vm.mmap_min_addr without CAP_SYS_RAWIO"];
const GAINS: [&str; 2] = ["PR_MDWE_REFUSE_EXEC_GAIN", "PR_MDWE_NO_INHERIT"];

/// Said of calls that split mappings or make some, where there are as many as there may be, or nearly.
pub(crate) const FULL: &str = "close to vm.max_map_count";
/// Where Linux begins to refuse moves.
const CLOSE: u64 = 6;

/// What a process may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Standing {
    rights: Rights,
    locked: u64,
    fixed_min: u64,
    exec_gain: ExecGain,
    /// How many mappings more it may have.
    spare_mappings: u64,
}

impl Standing {
    /// At this moment.
    pub(crate) fn of(space: &Space<'_, HostPlatform>) -> Self {
        Self {
            rights: space.rights(),
            locked: space.limits().locked,
            fixed_min: space.layout().fixed_min.0,
            exec_gain: space.prctl().exec_gain(),
            spare_mappings: space.limits().mappings.saturating_sub(space.figures().mappings),
        }
    }

    /// Reports what is relevant to a call.
    pub(crate) fn note(self, call: Call, args: [u64; 6], mut count: impl FnMut(&'static str)) {
        let [addr, len, third, fourth, ..] = args;
        let locks = match call {
            Call::Mmap => fourth & MAP_LOCKED != 0,
            // Of what is locked or not.
            Call::Mremap => len < third,
            Call::Mlock | Call::Mlock2 | Call::Mlockall | Call::Munlock => true,
            _ => false,
        };
        if locks {
            let limit = match self.locked {
                0 => 0,
                1..=SMALL => 1,
                _ => 2,
            };
            count(LOCKS[limit + if self.rights.contains(Rights::LOCK) { 0 } else { 3 }]);
        }
        if call == Call::Mmap
            && fourth & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0
            && addr < self.fixed_min
            && len != 0
        {
            count(LOW[usize::from(!self.rights.contains(Rights::MAP_LOW))]);
        }
        let splits = matches!(
            call,
            Call::Mmap
                | Call::Munmap
                | Call::Mprotect
                | Call::Mremap
                | Call::Madvise
                | Call::Mlock
                | Call::Munlock
        );
        if splits && self.spare_mappings <= CLOSE {
            count(FULL);
        }
        let executes =
            matches!(call, Call::Mmap | Call::Mprotect | Call::PkeyMprotect | Call::Fork | Call::Prctl);
        match self.exec_gain {
            ExecGain::Refused if executes => count(GAINS[0]),
            ExecGain::RefusedNotInherited if executes => count(GAINS[1]),
            _ => {}
        }
    }
}

/// Whether [`Standing::note`] can say so.
#[cfg(test)]
pub(crate) fn is_counted(what: &str) -> bool {
    what == FULL || LOCKS.contains(&what) || LOW.contains(&what) || GAINS.contains(&what)
}

/// Whether this is said only of processes with a privilege.
pub(crate) fn needs_privileges(what: &str) -> bool {
    LOCKS[..3].contains(&what) || what == LOW[0]
}
