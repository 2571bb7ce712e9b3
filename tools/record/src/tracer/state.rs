//! The tracer's state of threads, processes and address spaces.

use crate::files::FileKey;
use crate::merge::SpaceId;
use crate::perf::Root;
use crate::proc::files::KnownFile;
use crate::sys::Tid;
use crate::sys::wait::ChildStatus;
use quire_trace::event::{CallDetail, LinuxFigures, Privileges, TaskId, ThpDisable};
use std::collections::{HashMap, VecDeque};

/// A thread.
#[derive(Debug)]
pub(super) struct TracedTask {
    pub(super) id: TaskId,
    pub(super) pid: Tid,
    pub(super) space: SpaceId,
    pub(super) state: State,
    /// Where the kernel tells the thread its CPU.
    pub(super) rseq: Rseq,
    pub(super) cpu: u32,
    /// Its privileges.
    pub(super) privileges: Privileges,
    /// Whose perf events it inherited; `None` if Linux removed them and they could not be opened anew.
    pub(super) event_set: Option<Root>,
    /// It was made by this call, whose arguments the recorder changed: they are to be restored at its first
    /// stop.
    pub(super) made_by: Option<Entry>,
    /// It is exiting.
    pub(super) exiting: bool,
}

/// Where a thread's restartable-sequences area is. The kernel keeps the thread's CPU in it, so that one
/// cheap call reads it; `/proc/TID/stat` costs ten times as much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rseq {
    /// Not registered at the last check; check this many times more.
    Ask(u8),
    At(u64),
    None,
}

impl Rseq {
    /// The loader registers the area after a few mappings; threads do so at once.
    pub(super) const NEW: Self = Self::Ask(32);
}

/// What a thread is doing.
#[derive(Debug)]
pub(super) enum State {
    /// Running, or stopped for a signal.
    Running,
    /// In a call that is not recorded (seen only when every call is).
    Ignored,
    /// Stopped before a call until the call ahead of it in its address space has ended.
    AwaitsCallLock(Entry),
    /// In a call.
    InCall(InCall),
    /// In a call that makes a thread or process.
    InClone { entry: Entry, start: u64, flags: u64 },
    /// In exec. `stack` is where the old program's stack begins.
    InExec { entry: Entry, start: u64, figures: Option<Box<LinuxFigures>>, stack: u64 },
}

/// A call that a thread is about to make.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) args: [u64; 6],
    /// It is one of the i386 table; the number is that of the same call in the usual one.
    pub(super) is_32_bit: bool,
}

impl Entry {
    /// A call of the usual table.
    pub(super) fn new(number: u64, args: [u64; 6]) -> Self {
        Self { number, args, is_32_bit: false }
    }
}

/// A call that a thread is in.
#[derive(Debug)]
pub(super) struct InCall {
    pub(super) entry: Entry,
    pub(super) start: u64,
    pub(super) detail: CallDetail,
    /// The limit that it sets, if it does: whose, soft, hard.
    pub(super) limit: Option<(Tid, u64, u64)>,
    /// Linux skips it: the recorder emulates it.
    pub(super) emulated: bool,
    /// The mapped file that it may change.
    pub(super) file: Option<FileKey>,
}

impl InCall {
    /// A call without further state.
    pub(super) fn new(entry: Entry, start: u64) -> Self {
        Self { entry, start, detail: CallDetail::None, limit: None, emulated: false, file: None }
    }
}

/// A thread that stopped before its parent's clone event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Early {
    /// Its last report. If that is a stop, it is still in it.
    pub(super) status: ChildStatus,
    pub(super) since: u64,
}

/// A process.
#[derive(Debug)]
pub(super) struct TracedProcess {
    pub(super) threads: u32,
    pub(super) threads_peak: u32,
    /// Its CPU time when one of its threads was last about to end.
    pub(super) cpu_ns: u64,
    /// Its CPU time before the present image.
    pub(super) cpu_before: u64,
    /// Minor and major faults before the present image.
    pub(super) faults_before: (u64, u64),
    /// How many of those since are reported as lost.
    pub(super) unheard_faults: u64,
}

/// An address space.
#[derive(Debug, Default)]
pub(super) struct TracedSpace {
    /// Threads in it that are not exiting.
    pub(super) users: u32,
    /// The thread that is in a memory call, and since when.
    pub(super) holder: Option<(Tid, u64)>,
    /// Threads that wait for it.
    pub(super) waiting: VecDeque<Tid>,
    /// A call of a foreign ABI was seen.
    pub(super) foreign: bool,
    /// The program break.
    pub(super) brk: u64,
    /// The program's `PR_SET_THP_DISABLE` setting, where that is emulated.
    pub(super) thp_disable: ThpDisable,
    /// When page tables and mappings are counted again.
    pub(super) next_sample: u64,
    pub(super) vm_pte_peak: u64,
    pub(super) mappings_peak: u64,
    /// Figures taken shortly before the end, in case the last thread ends without a stop.
    pub(super) figures: Option<Box<LinuxFigures>>,
    /// The file that was mapped last: the same one is often mapped several times in a row.
    pub(super) last_file: Option<KnownFile>,
}

/// A thread of each space that is not in exec, and its process.
pub(super) fn users(tasks: &HashMap<Tid, TracedTask>) -> HashMap<SpaceId, (Tid, Tid)> {
    let lasting = |task: &TracedTask| !task.exiting && !matches!(task.state, State::InExec { .. });
    let lasting = tasks.iter().filter(|(_, task)| lasting(task));
    lasting.map(|(tid, task)| (task.space, (*tid, task.pid))).collect()
}
