//! Figures of a process: `/proc/PID/status` and `/proc/PID/stat`.

use super::{Keyed, text};
use crate::sys::Tid;
use quire_trace::event::Privileges;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// What `/proc/PID/ns/user` shows for the initial namespace: its number never changes (`PROC_USER_INIT_INO`).
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";
/// `CAP_IPC_LOCK`.
const CAP_IPC_LOCK: u32 = 14;
/// `CAP_SYS_RAWIO`.
const CAP_SYS_RAWIO: u32 = 17;

/// The ids of a thread in each pid namespace that it is in, the outermost first.
pub(crate) fn ids(tid: Tid) -> Vec<Tid> {
    Keyed::status(tid).words("NSpid").filter_map(|id| id.parse().ok()).collect()
}

/// How many seccomp filters a thread has; 0 where Linux does not say.
pub(crate) fn own_filters(tid: Tid) -> u64 {
    Keyed::status(tid).number("Seccomp_filters").unwrap_or(0)
}

/// Whether a program is one that only root may look into, by who owns its files in `/proc`: the user and the
/// group that it acts for, or root. `None` where the two are the same.
pub(crate) fn is_hidden(tid: Tid) -> Option<bool> {
    let owner = fs::metadata(format!("/proc/{tid}/stat")).ok()?;
    let status = Keyed::status(tid);
    let effective = |key| status.words(key).nth(1)?.parse().ok();
    let acts_for: (u32, u32) = (effective("Uid")?, effective("Gid")?);
    if (owner.uid(), owner.gid()) != acts_for {
        return Some(true);
    }
    let namespace = fs::read_link(format!("/proc/{tid}/ns/user")).ok()?;
    // Elsewhere root can be anyone.
    (acts_for != (0, 0) && namespace.as_os_str() == INITIAL_USER_NAMESPACE).then_some(false)
}

/// A thread's privileges. Its capabilities count only in the initial user namespace.
pub(crate) fn privileges(tid: Tid) -> Privileges {
    let namespace = fs::read_link(format!("/proc/{tid}/ns/user"));
    if namespace.is_ok_and(|link| link.as_os_str() != INITIAL_USER_NAMESPACE) {
        return Privileges::default();
    }
    let status = Keyed::status(tid);
    let set = status.word("CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    let has = |number: u32| set & (1 << number) != 0;
    Privileges { ipc_lock: has(CAP_IPC_LOCK), sys_rawio: has(CAP_SYS_RAWIO) }
}

/// What the recorder needs of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stat {
    /// It waits in the kernel for something other than its tracer.
    pub(crate) sleeps: bool,
    /// It has a CPU, or waits for one.
    pub(crate) runs: bool,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
    pub(crate) start_stack: u64,
    pub(crate) processor: u32,
    pub(crate) start_brk: u64,
    pub(crate) arg_start: u64,
    pub(crate) arg_end: u64,
    pub(crate) env_start: u64,
    pub(crate) env_end: u64,
}

impl Stat {
    /// Reads it; zeros if the process is gone.
    pub(crate) fn read(tid: Tid) -> Self {
        let text = text(tid, "stat");
        // The name in parentheses may hold anything, also `) `: fields count from the last one. The first
        // word after it is field 3.
        let fields: Vec<&str> = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
        let field =
            |number: usize| fields.get(number - 3).and_then(|word| word.trim().parse().ok()).unwrap_or(0);
        Self {
            runs: fields.first().is_some_and(|state| *state == "R"),
            sleeps: fields.first().is_some_and(|state| matches!(*state, "S" | "D")),
            minor_faults: field(10),
            major_faults: field(12),
            start_stack: field(28),
            processor: field(39) as u32,
            start_brk: field(47),
            arg_start: field(48),
            arg_end: field(49),
            env_start: field(50),
            env_end: field(51),
        }
    }
}

/// Pages of shared memory that a process has mapped; 0 if it has ended.
pub(crate) fn shared_pages(pid: Tid) -> u64 {
    const KIB_A_PAGE: u64 = 4;
    Keyed::status(pid).number("RssShmem").unwrap_or(0) / KIB_A_PAGE
}

/// Anonymous pages of a process, from `/proc/PID/statm`; 0 if it has ended.
pub(crate) fn anonymous_pages(pid: Tid) -> u64 {
    let text = text(pid, "statm");
    let mut words = text.split_whitespace().skip(1).map(|word| word.parse().unwrap_or(0));
    let (resident, shared): (u64, u64) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
    resident.saturating_sub(shared)
}
