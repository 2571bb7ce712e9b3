//! What a process may do at the moment of a call: its privileges and limits, for the list of what has
//! occurred.

use crate::program::Call;
use quire_host::HostPlatform;
use quire_mm::{ExecGain, Rights, Space};

const OK: &str = "ok";
const EPERM: &str = "EPERM";
const EAGAIN: &str = "EAGAIN";
const ENOMEM: &str = "ENOMEM";
const EACCES: &str = "EACCES";

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

/// A kind of standing with the calls and results that it can meet.
type Row = (&'static str, &'static [(Call, &'static [&'static str])]);

/// With the privilege the limit does not count.
const PRIVILEGED: &[(Call, &[&str])] = &[
    (Call::Mlock, &[OK, ENOMEM]),
    (Call::Mlock2, &[OK]),
    (Call::Mlockall, &[OK]),
    (Call::Mmap, &[OK]),
    (Call::Mremap, &[OK]),
    (Call::Munlock, &[OK]),
];

/// What can occur where the process has the privileges to give up, and elsewhere.
const ROWS: [Row; 10] = [
    (LOCKS[0], PRIVILEGED),
    (LOCKS[1], PRIVILEGED),
    (LOCKS[2], PRIVILEGED),
    (
        LOCKS[3],
        &[
            (Call::Mlock, &[EPERM]),
            (Call::Mlock2, &[EPERM]),
            (Call::Mlockall, &[EPERM]),
            (Call::Mmap, &[EPERM]),
            (Call::Mremap, &[OK]),
            (Call::Munlock, &[OK]),
        ],
    ),
    (
        LOCKS[4],
        &[
            (Call::Mlock, &[OK, ENOMEM]),
            (Call::Mlock2, &[OK, ENOMEM]),
            (Call::Mlockall, &[OK, ENOMEM]),
            (Call::Mmap, &[OK, EAGAIN]),
            (Call::Mremap, &[OK, EAGAIN]),
            (Call::Munlock, &[OK]),
        ],
    ),
    (
        LOCKS[5],
        &[
            (Call::Mlock, &[OK, ENOMEM]),
            (Call::Mlock2, &[OK]),
            (Call::Mlockall, &[OK]),
            (Call::Mmap, &[OK]),
            (Call::Mremap, &[OK]),
            (Call::Munlock, &[OK]),
        ],
    ),
    (LOW[0], &[(Call::Mmap, &[OK])]),
    (LOW[1], &[(Call::Mmap, &[EPERM])]),
    (GAINS[0], EXECUTING),
    (GAINS[1], EXECUTING),
];

const EXECUTING: &[(Call, &[&str])] = &[
    (Call::Mmap, &[OK, EACCES]),
    (Call::Mprotect, &[OK, EACCES]),
    (Call::PkeyMprotect, &[OK, EACCES]),
    (Call::Fork, &[OK]),
    (Call::Prctl, &[OK, EPERM]),
];

/// What a process may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Standing {
    rights: Rights,
    locked: u64,
    fixed_min: u64,
    exec_gain: ExecGain,
}

impl Standing {
    /// At this moment.
    pub(crate) fn of(space: &Space<'_, HostPlatform>) -> Self {
        Self {
            rights: space.rights(),
            locked: space.limits().locked,
            fixed_min: space.layout().fixed_min.0,
            exec_gain: space.exec_gain(),
        }
    }

    /// Tells what of it bears on a call.
    pub(crate) fn note(self, call: Call, args: [u64; 6], mut count: impl FnMut(&'static str)) {
        const LOCKED: u64 = 0x2000;
        const FIXED: u64 = 0x10_0010;
        let [addr, len, third, fourth, ..] = args;
        let locks = match call {
            Call::Mmap => fourth & LOCKED != 0,
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
        if call == Call::Mmap && fourth & FIXED != 0 && addr < self.fixed_min && len != 0 {
            count(LOW[usize::from(!self.rights.contains(Rights::MAP_LOW))]);
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

/// Calls with what can be said of the standing and the results; those with privileges only where there were
/// some.
pub(crate) fn expected(
    privileges: bool,
) -> impl Iterator<Item = (Call, &'static str, &'static [&'static str])> {
    let rows = ROWS.iter().filter(move |(what, _)| privileges || !needs_privileges(what));
    rows.flat_map(|(what, calls)| calls.iter().map(move |(call, results)| (*call, *what, *results)))
}

/// Whether this is said only of processes with a privilege.
pub(crate) fn needs_privileges(what: &str) -> bool {
    LOCKS[..3].contains(&what) || what == LOW[0]
}
