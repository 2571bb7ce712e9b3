//! What a trace consists of: one [`Event`] for each thing that changed or touched memory.

mod call;
mod fault;
mod figures;
mod file;
mod image;
mod privileges;
mod reuse;
mod thp;

pub use call::{C_LIBRARIES, SYS_MAP_SHADOW_STACK, is_error};
pub use call::{Call, CallDetail, FileFacts, FileKind, HeldInMemory, Limit, LimitKind, MapTrial, TmpfsHuge};
pub use fault::{Access, Denial, Fault, Mode, Outcome};
pub use figures::{FiguresCause, LinuxFigures};
pub use file::{FileChange, FileChangeError, FileEvent, IndexRun, SizeCause};
pub use image::{
    Abi, BaseSource, Direction, ExecImage, Limits, Mapping, MmapBase, PageRun, Rlimit, ThpMode, VmFlags,
};
pub use privileges::{ExecGain, Privileges};
pub use reuse::{
    Compressibility, ContentSample, PageContents, PageSample, Reuse, ReuseAccess, ReuseRun, ReuseSource,
};
pub use thp::ThpDisable;

/// A thread of the recorded run: its index in the trace, counted from 0 in the order in which threads appear.
///
/// Linux's thread ids are reused during a long run, these are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TaskId(pub u32);

/// One step of the recorded run.
///
/// Events lie in the file in an order that is a valid serialisation of the run: replaying them one after the
/// other gives the results that Linux gave. `docs/trace-format.md` says exactly what is guaranteed.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Nanoseconds since the start of the recording (CLOCK_MONOTONIC).
    pub time_ns: u64,
    /// The thread that did it, or that it happened to.
    pub task: TaskId,
    /// The CPU that the thread ran on, as far as is known (see `docs/trace-format.md`).
    pub cpu: u32,
    /// What happened.
    pub kind: EventKind,
}

/// What happened in an [`Event`].
#[derive(Debug, Clone, PartialEq)]
pub enum EventKind {
    /// The thread touched memory and the processor raised a page fault.
    Fault(Fault),
    /// A memory call, with its result.
    Call(Call),
    /// A new thread or process; the event's task is its creator.
    Clone(CloneFacts),
    /// The process has a new image: its whole layout. The first event of the root process is one.
    Exec(Box<ExecImage>),
    /// A resource limit changed; it follows the call that did it.
    Limit(Limit),
    /// Linux's own figures of an address space, taken just before its end.
    Figures(Box<LinuxFigures>),
    /// The thread has ended.
    Exit(ExitStatus),
    /// Events are missing here.
    Lost(Lost),
    /// The thread did something that this format cannot represent; its address space cannot be replayed
    /// further.
    Unsupported(Unsupported),
    /// Pages that the thread's address space used since the sample before. Only if requested.
    Reuse(Reuse),
    /// How well pages of the thread's address space compress. Only if requested.
    Compressibility(Compressibility),
    /// The thread's privileges changed; it follows the call that did it. Other threads keep theirs.
    Privileges(Privileges),
    /// The contents of pages of a region that is now paged out. Only where the recorder pages memory
    /// out.
    Contents(Box<ContentSample>),
    /// The next call of the thread, which is the next event, overlaps with calls of other threads.
    Window(Window),
    /// What is known of a mapped file from here on. The thread changed it, or maps it next.
    File(Box<FileEvent>),
}

/// A new thread or process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloneFacts {
    /// The new thread's index.
    pub child: TaskId,
    /// The new thread's id in Linux, for comparison with other tools.
    pub child_tid: u32,
    /// The id of the new thread's process in Linux.
    pub child_pid: u32,
    /// The `CLONE_*` flags that it was made with (fork: 0, vfork: `CLONE_VM | CLONE_VFORK`).
    pub flags: u64,
    /// Both use one address space (`CLONE_VM`). If not, the child has a copy of it.
    pub shares_memory: bool,
    /// Both are threads of one process (`CLONE_THREAD`).
    pub same_process: bool,
}

/// When a call took effect: at some moment from one time to another, in nanoseconds since the start of the
/// recording.
///
/// A call of another thread of its address space has a window that overlaps with this one, so the order of
/// the two is not known. Calls without such an event took effect where they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Not before.
    pub start_ns: u64,
    /// Not after.
    pub end_ns: u64,
}

impl Window {
    /// This moment.
    #[must_use]
    pub fn at(time_ns: u64) -> Self {
        Self { start_ns: time_ns, end_ns: time_ns }
    }

    /// Whether there is a moment in both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start_ns <= other.end_ns && other.start_ns <= self.end_ns
    }
}

/// How a thread ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExitStatus {
    /// It called exit with this code, or its process did.
    Code(u8),
    /// This signal ended it.
    Signal(u8),
    /// It was replaced: another thread of its process called exec.
    Replaced,
    /// It ended after the recorder had detached from it.
    #[default]
    Unknown,
}

/// Events that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// How many.
    pub count: u64,
    /// Why.
    pub cause: LostCause,
}

/// Why events are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostCause {
    /// The kernel's ring buffer was full: these page faults, and calls without a stop, were not recorded.
    RingFull,
    /// A damaged part of the file was skipped. Only a salvaging reader makes this event; it is never in a
    /// file.
    Damage,
    /// Linux removed the events of a program with other privileges, and they could not be opened anew. It
    /// counted these page faults; the calls without a stop are not known either.
    Unheard,
}

/// What cannot be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsupported {
    /// Calls of the 32-bit (i386) or x32 ABI: their numbers and arguments have other meanings.
    ForeignAbi,
}

impl EventKind {
    /// The number of different kinds.
    pub const COUNT: usize = 15;

    /// Names of the kinds, in the order of [`EventKind::index`].
    pub const NAMES: [&'static str; Self::COUNT] = [
        "fault",
        "call",
        "clone",
        "exec",
        "limit",
        "figures",
        "exit",
        "lost",
        "unsupported",
        "reuse",
        "compressibility",
        "privileges",
        "contents",
        "window",
        "file",
    ];

    /// The place of this kind in a table of all kinds.
    #[must_use]
    pub fn index(&self) -> usize {
        match self {
            Self::Fault(_) => 0,
            Self::Call(_) => 1,
            Self::Clone(_) => 2,
            Self::Exec(_) => 3,
            Self::Limit(_) => 4,
            Self::Figures(_) => 5,
            Self::Exit(_) => 6,
            Self::Lost(_) => 7,
            Self::Unsupported(_) => 8,
            Self::Reuse(_) => 9,
            Self::Compressibility(_) => 10,
            Self::Privileges(_) => 11,
            Self::Contents(_) => 12,
            Self::Window(_) => 13,
            Self::File(_) => 14,
        }
    }
}
