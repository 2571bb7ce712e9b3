//! Which calls are recorded, and how each affects the order of events.

use quire_trace::event::{SYS_MAP_SHADOW_STACK, is_error};

/// What a call does to its address space, as far as the order of events is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Memory in this range can be touched from now on that could not be before.
    Creates { start: u64, end: u64 },
    /// Memory in this range can no longer be touched, or loses its contents.
    Removes { start: u64, end: u64 },
    /// Neither.
    Neutral,
}

/// The kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// A memory call that ends soon: one at a time in each address space.
    Memory,
    /// A memory call that may wait for a device or another process; it changes no layout, so it does not
    /// delay others.
    Waiting,
    /// It makes a thread or process.
    Clone,
    /// It replaces the program.
    Exec,
    /// It may change what its thread is allowed to do; only that is recorded.
    Credentials,
    /// It ends the process; not recorded, but the last chance to see the process whole.
    End,
    /// It traces another thread or asks to be traced; not recorded, but reported to the user.
    Traces,
    /// It asks for seccomp's strict mode; not recorded, but reported to the user.
    Strict,
    /// It reads or sets a thread's CPU affinity; not recorded, but the recorder changes the affinity at
    /// times.
    Affinity,
    /// It may change the length of a file or what of it is cached; that is recorded if the file was mapped.
    File,
    /// Not recorded.
    Other,
}

/// A condition on an argument under which a call is recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnlyIf {
    pub(crate) call: i64,
    pub(crate) arg: usize,
    pub(crate) values: &'static [u32],
}

/// The limits that concern memory.
pub(crate) const MEMORY_LIMITS: [u32; 4] =
    [libc::RLIMIT_AS, libc::RLIMIT_DATA, libc::RLIMIT_STACK, libc::RLIMIT_MEMLOCK];

/// `arch_prctl` codes that map something: the vDSO (three widths) and shadow stacks (enable, disable).
const ARCH_CODES: [u32; 5] = [0x2001, 0x2002, 0x2003, 0x5001, 0x5002];
/// `ptrace` requests that begin to trace.
const PTRACE_REQUESTS: [u32; 3] = [libc::PTRACE_TRACEME, libc::PTRACE_ATTACH, libc::PTRACE_SEIZE];
/// `prctl` codes that change memory settings, or read them, and the one that may ask for strict mode.
const PRCTL_CODES: [u32; 7] = [
    libc::PR_SET_VMA as u32,
    libc::PR_SET_THP_DISABLE as u32,
    libc::PR_GET_THP_DISABLE as u32,
    libc::PR_SET_MM as u32,
    libc::PR_SET_MDWE as u32,
    libc::PR_GET_MDWE as u32,
    libc::PR_SET_SECCOMP as u32,
];

/// Calls that are recorded whatever their arguments are.
pub(crate) const ALWAYS: [(i64, Class); 49] = [
    (libc::SYS_mmap, Class::Memory),
    (libc::SYS_mprotect, Class::Memory),
    (libc::SYS_munmap, Class::Memory),
    (libc::SYS_brk, Class::Memory),
    (libc::SYS_mremap, Class::Memory),
    (libc::SYS_msync, Class::Waiting),
    (libc::SYS_mincore, Class::Memory),
    (libc::SYS_madvise, Class::Memory),
    (libc::SYS_shmat, Class::Memory),
    (libc::SYS_shmdt, Class::Memory),
    (libc::SYS_clone, Class::Clone),
    (libc::SYS_fork, Class::Clone),
    (libc::SYS_vfork, Class::Clone),
    (libc::SYS_clone3, Class::Clone),
    (libc::SYS_execve, Class::Exec),
    (libc::SYS_exit_group, Class::End),
    (libc::SYS_execveat, Class::Exec),
    (libc::SYS_personality, Class::Memory),
    (libc::SYS_mlock, Class::Memory),
    (libc::SYS_mlock2, Class::Memory),
    (libc::SYS_munlock, Class::Memory),
    (libc::SYS_mlockall, Class::Memory),
    (libc::SYS_munlockall, Class::Memory),
    (libc::SYS_io_setup, Class::Memory),
    (libc::SYS_io_destroy, Class::Waiting),
    (libc::SYS_remap_file_pages, Class::Memory),
    (libc::SYS_mbind, Class::Memory),
    (libc::SYS_set_mempolicy, Class::Memory),
    (libc::SYS_set_mempolicy_home_node, Class::Memory),
    (libc::SYS_userfaultfd, Class::Memory),
    (libc::SYS_pkey_mprotect, Class::Memory),
    (libc::SYS_pkey_alloc, Class::Memory),
    (libc::SYS_pkey_free, Class::Memory),
    (libc::SYS_process_madvise, Class::Waiting),
    (SYS_MAP_SHADOW_STACK, Class::Memory),
    (libc::SYS_mseal, Class::Memory),
    (libc::SYS_capset, Class::Credentials),
    (libc::SYS_setuid, Class::Credentials),
    (libc::SYS_setreuid, Class::Credentials),
    (libc::SYS_setresuid, Class::Credentials),
    (libc::SYS_unshare, Class::Credentials),
    (libc::SYS_setns, Class::Credentials),
    (libc::SYS_sched_getaffinity, Class::Affinity),
    (libc::SYS_sched_setaffinity, Class::Affinity),
    (libc::SYS_ftruncate, Class::File),
    (libc::SYS_truncate, Class::File),
    (libc::SYS_fallocate, Class::File),
    (libc::SYS_creat, Class::File),
    // Its flags are in memory.
    (libc::SYS_openat2, Class::File),
];

/// Calls that need no stop where tracepoints report them: all that is recorded of them is in registers.
pub(crate) const WITHOUT_STOP: [i64; 6] = [
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_brk,
    libc::SYS_mremap,
    libc::SYS_madvise,
];

/// Calls that are recorded only if an argument has one of some values.
pub(crate) const SOMETIMES: [OnlyIf; 6] = [
    OnlyIf { call: libc::SYS_ptrace, arg: 0, values: &PTRACE_REQUESTS },
    OnlyIf { call: libc::SYS_prctl, arg: 0, values: &PRCTL_CODES },
    OnlyIf { call: libc::SYS_seccomp, arg: 0, values: &[libc::SECCOMP_SET_MODE_STRICT] },
    OnlyIf { call: libc::SYS_arch_prctl, arg: 0, values: &ARCH_CODES },
    OnlyIf { call: libc::SYS_setrlimit, arg: 0, values: &MEMORY_LIMITS },
    OnlyIf { call: libc::SYS_prlimit64, arg: 1, values: &MEMORY_LIMITS },
];

/// Calls that stop if an argument has a bit: those that open a file and empty it.
pub(crate) const WITH_BIT: [(i64, usize, u32); 2] =
    [(libc::SYS_open, 1, libc::O_TRUNC as u32), (libc::SYS_openat, 2, libc::O_TRUNC as u32)];

/// i386 numbers of calls that change memory: if a 64-bit program makes one, its trace cannot be replayed.
pub(crate) const FOREIGN: [u32; 8] = [45, 90, 91, 125, 163, 192, 219, 384];

/// `clone` and `clone3` of the i386 table.
pub(crate) const CLONE_IN_32_BIT: u32 = 120;
/// See [`CLONE_IN_32_BIT`].
pub(crate) const CLONE3_IN_32_BIT: u32 = 435;

/// The kind of this call.
pub(crate) fn classify(number: u64, args: &[u64; 6]) -> Class {
    let number = number as i64;
    if let Some((_, class)) = ALWAYS.into_iter().find(|(call, _)| *call == number) {
        return class;
    }
    if WITH_BIT.into_iter().any(|(call, arg, bit)| call == number && args[arg] as u32 & bit != 0) {
        return Class::File;
    }
    let rule = SOMETIMES.into_iter().find(|rule| rule.call == number);
    let wanted = rule.is_some_and(|rule| rule.values.contains(&(args[rule.arg] as u32)));
    if wanted && number == libc::SYS_ptrace {
        return Class::Traces;
    }
    if wanted && number == libc::SYS_seccomp {
        return Class::Strict;
    }
    if wanted && number == libc::SYS_prctl && args[0] as i32 == libc::PR_SET_SECCOMP {
        let is_strict = args[1] as u32 == libc::SECCOMP_MODE_STRICT;
        return if is_strict { Class::Strict } else { Class::Other };
    }
    // Reading the limit does not change it.
    let only_asks = number == libc::SYS_prlimit64 && args[2] == 0;
    if wanted && !only_asks { Class::Memory } else { Class::Other }
}

/// What a call did, seen from its end.
pub(crate) fn effect(number: u64, args: &[u64; 6], result: i64) -> Effect {
    let range = |start: u64, len: u64| (start, start.saturating_add(len));
    let (start, end) = range(args[0], args[1]);
    if is_error(result) {
        return Effect::Neutral;
    }
    match number as i64 {
        libc::SYS_mmap | libc::SYS_shmat | SYS_MAP_SHADOW_STACK => {
            let (start, end) = range(result as u64, args[1]);
            Effect::Creates { start, end }
        }
        libc::SYS_brk => Effect::Creates { start: 0, end: result as u64 },
        libc::SYS_mprotect | libc::SYS_pkey_mprotect => {
            // Calls that open memory for writing come before the writes, those that close it after.
            let opens = args[2] as i32 & libc::PROT_WRITE != 0;
            if opens { Effect::Creates { start, end } } else { Effect::Removes { start, end } }
        }
        libc::SYS_munmap | libc::SYS_mremap | libc::SYS_madvise => Effect::Removes { start, end },
        libc::SYS_shmdt => Effect::Removes { start: args[0], end: u64::MAX },
        _ => Effect::Neutral,
    }
}

/// Whether a call may remove pages or change their protection, so that their state must be read before it
/// when page faults are not reported.
pub(crate) fn disturbs_pages(number: u64, args: &[u64; 6]) -> bool {
    match number as i64 {
        libc::SYS_mmap => args[3] as i32 & libc::MAP_FIXED != 0,
        libc::SYS_munmap
        | libc::SYS_mprotect
        | libc::SYS_pkey_mprotect
        | libc::SYS_brk
        | libc::SYS_mremap
        | libc::SYS_madvise
        | libc::SYS_shmdt => true,
        _ => false,
    }
}
