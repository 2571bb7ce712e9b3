//! Numbers of the memory calls (x86-64).

/// A memory call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum CallNumber {
    /// `mmap`.
    Mmap,
    /// `mprotect`.
    Mprotect,
    /// `munmap`.
    Munmap,
    /// `brk`.
    Brk,
    /// `mremap`.
    Mremap,
    /// `msync`.
    Msync,
    /// `mincore`.
    Mincore,
    /// `madvise`.
    Madvise,
    /// `mlock`.
    Mlock,
    /// `munlock`.
    Munlock,
    /// `mlockall`.
    Mlockall,
    /// `munlockall`.
    Munlockall,
    /// `mlock2`.
    Mlock2,
    /// `pkey_mprotect`.
    PkeyMprotect,
    /// `prctl`; only its options about memory are implemented.
    Prctl,
    /// Any other call, by its number.
    Other(u32),
}

/// Calls with their numbers and names.
const CALLS: &[(CallNumber, u32, &str)] = &[
    (CallNumber::Mmap, 9, "mmap"),
    (CallNumber::Mprotect, 10, "mprotect"),
    (CallNumber::Munmap, 11, "munmap"),
    (CallNumber::Brk, 12, "brk"),
    (CallNumber::Mremap, 25, "mremap"),
    (CallNumber::Msync, 26, "msync"),
    (CallNumber::Mincore, 27, "mincore"),
    (CallNumber::Madvise, 28, "madvise"),
    (CallNumber::Mlock, 149, "mlock"),
    (CallNumber::Munlock, 150, "munlock"),
    (CallNumber::Mlockall, 151, "mlockall"),
    (CallNumber::Munlockall, 152, "munlockall"),
    (CallNumber::Prctl, 157, "prctl"),
    (CallNumber::Mlock2, 325, "mlock2"),
    (CallNumber::PkeyMprotect, 329, "pkey_mprotect"),
];

/// Names of calls that are known but not implemented, for messages.
const UNBUILT: &[(u32, &str)] = &[
    (29, "shmget"),
    (30, "shmat"),
    (56, "clone"),
    (57, "fork"),
    (58, "vfork"),
    (59, "execve"),
    (67, "shmdt"),
    (105, "setuid"),
    (113, "setreuid"),
    (117, "setresuid"),
    (122, "setfsuid"),
    (126, "capset"),
    (135, "personality"),
    (158, "arch_prctl"),
    (160, "setrlimit"),
    (206, "io_setup"),
    (207, "io_destroy"),
    (216, "remap_file_pages"),
    (237, "mbind"),
    (238, "set_mempolicy"),
    (272, "unshare"),
    (302, "prlimit64"),
    (308, "setns"),
    (322, "execveat"),
    (323, "userfaultfd"),
    (330, "pkey_alloc"),
    (331, "pkey_free"),
    (435, "clone3"),
    (440, "process_madvise"),
    (450, "set_mempolicy_home_node"),
    (453, "map_shadow_stack"),
    (462, "mseal"),
];

impl CallNumber {
    /// The call with the x86-64 number `number`.
    pub fn from_raw(number: u32) -> Self {
        CALLS.iter().find(|call| call.1 == number).map_or(Self::Other(number), |call| call.0)
    }

    /// Its x86-64 number.
    pub fn raw(self) -> u32 {
        match self {
            Self::Other(number) => number,
            known => CALLS.iter().find(|call| call.0 == known).map_or(u32::MAX, |call| call.1),
        }
    }

    /// Its name, or `None` for a call that has nothing to do with memory.
    #[doc(hidden)]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Other(number) => UNBUILT.iter().find(|call| call.0 == number).map(|call| call.1),
            known => CALLS.iter().find(|call| call.0 == known).map(|call| call.2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_call_has_a_number_and_a_name() {
        for &(call, number, name) in CALLS {
            assert_eq!(CallNumber::from_raw(number), call);
            assert_eq!((call.raw(), call.name()), (number, Some(name)));
        }
        assert_eq!(CallNumber::from_raw(0), CallNumber::Other(0));
        assert_eq!(CallNumber::from_raw(30).name(), Some("shmat"));
    }
}
