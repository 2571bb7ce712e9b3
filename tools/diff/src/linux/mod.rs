//! The oracle: processes of the host's Linux that make the calls of a program.

pub(crate) mod access;
mod board;
mod child;
mod file;
mod image;
mod interference;
mod ipc;
mod memfd;
mod observe;
mod preparation;
mod prepare;
pub(crate) mod probes;
pub(crate) mod raw;
mod settings;
pub(crate) mod shared;
mod start;
mod steps;
mod swap;
mod text;
mod texts;

pub(crate) use board::{MOST_DATA, MOST_FILE_PAGES, MOST_MEMFD_PAGES};
pub(crate) use child::crowd;
pub(crate) use interference::{Disturbance, Interference};
pub(crate) use prepare::MOST_CROWD;
pub(crate) use settings::{Host, Settings};
pub(crate) use start::{Start, StoreFacts, rights_of};
pub(crate) use steps::Steps;
pub use swap::{HostSwap, HostSwapError};
pub(crate) use text::shown_flags;

use crate::program::names::MADV_MERGEABLE;
use crate::program::{Call, Class, Op, Program, Store, Trait, WINDOW_BYTES, Word};
use board::{Board, MAKES_AREA, MAKES_SEGMENT, MOST_OWN, WANT_ALL_TEXT, WANT_STATUS, WANT_SUMS, WANT_TEXT};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use raw::{futex_wait, futex_wake};
use shared::Shared;
use start::Measured;
use std::ffi::CString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use thiserror::Error;

/// Why the oracle cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OracleError {
    /// Linux refused something that the oracle needs before its first program.
    #[error("cannot prepare a process of Linux: {step} (errno {errno})")]
    Setup {
        /// What.
        step: &'static str,
        /// The error number, or 0.
        errno: i64,
    },
    /// A text of /proc could not be read.
    #[error("cannot read /proc: {0}")]
    Proc(#[source] std::io::Error),
    /// A program's file could not be written.
    #[error("no room for a file of 164 KiB in memory or in the folder for temporary files (errno {errno})")]
    File {
        /// The error number.
        errno: i64,
    },
    /// A process of the oracle died.
    #[error("a process that asked Linux died with wait status {status:#x}")]
    Died {
        /// Its wait status.
        status: u32,
    },
}

/// How much is observed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// Mappings and pages after each operation; all flags and figures after each call; contents from time to
    /// time.
    Usual,
    /// Everything after each operation.
    Thorough,
}

/// Operations from one check of all contents to the next, and from one full text of `smaps` to the next.
const SUMS_EVERY: usize = 64;
const ALL_TEXT_EVERY: usize = 16;

/// Whether an operation is made on neither side because of the host's settings: a page of memory that was
/// marked MERGEABLE would become one with another, or the page of zeros, whenever Linux comes by. As many
/// mappings as some hosts allow would take too long.
pub(crate) fn leaves_out(settings: &Settings, op: &Op) -> bool {
    merges(settings, op)
        || op.call == Call::Crowd && settings.most_mappings() >= MOST_CROWD
        || op.call == Call::MemfdCreate && !settings.leaves_memfds_alone()
}

/// Whether that is because the host merges equal pages.
pub(crate) fn merges(settings: &Settings, op: &Op) -> bool {
    let marks = |advice| matches!(advice, Word::Exact(advice) if advice as u32 == MADV_MERGEABLE as u32);
    settings.merges_pages() && op.call == Call::Madvise && marks(op.args[2])
}

/// One of the CPUs that this process may run on, each in its turn.
fn next_cpu() -> CpuSet {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let is_allowed = |cpu: &usize| allowed.is_set(*cpu).unwrap_or(false);
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(is_allowed).collect();
    let mut one = CpuSet::new();
    match cpus.get(NEXT.fetch_add(1, Relaxed) % cpus.len().max(1)) {
        Some(&cpu) if one.set(cpu).is_ok() => one,
        _ => allowed,
    }
}

/// Where temporary files are.
#[expect(clippy::disallowed_methods, reason = "what is made there has no name")]
fn temporary_folder() -> Result<CString, OracleError> {
    let step = "the name of the folder for temporary files (TMPDIR) has a zero in it";
    let folder = std::env::temp_dir().into_os_string().into_vec();
    CString::new(folder).map_err(|_| OracleError::Setup { step, errno: 0 })
}

/// A template process that programs are forked from.
pub(crate) struct Oracle {
    pid: Pid,
    board: Shared<Board>,
    start: Start,
}

impl fmt::Debug for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Oracle").field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl Oracle {
    /// Starts a template process. It ends with the thread that started it, or when the oracle is dropped.
    ///
    /// # Errors
    ///
    /// [`OracleError::Setup`] on a Linux that is too old (6.11 is needed) or that forbids what the oracle
    /// does.
    pub(crate) fn start() -> Result<Self, OracleError> {
        let (image, brk) = (image::kept()?, image::initial_break()?);
        let refused = |step| move |error: nix::Error| OracleError::Setup { step, errno: error as i64 };
        let board = Shared::<Board>::new().map_err(refused("no shared memory"))?;
        board.image[0].store(image.0, Relaxed);
        board.image[1].store(image.1, Relaxed);
        board.facts.brk.store(brk, Relaxed);
        board.parent.store(std::process::id(), Relaxed);
        let cpus = next_cpu();
        let folder = temporary_folder()?;
        // SAFETY: the child runs code only that needs no lock that another thread could have held.
        let pid = match unsafe { fork() }.map_err(refused("fork"))? {
            ForkResult::Child => {
                prepare::become_template(&board, size_of::<Board>() as u64, (&cpus, &folder), child::template)
            }
            ForkResult::Parent { child } => child,
        };
        while board.over.load(Acquire) != u32::MAX {
            futex_wait(&board.over, 0);
            if board.over.load(Acquire) != u32::MAX && Self::is_gone(pid) {
                return Err(OracleError::Setup { step: "the template died", errno: 0 });
            }
        }
        let facts = &board.facts;
        if let Some(step) = preparation::Preparation::what_failed(facts.failed_step.load(Relaxed)) {
            return Err(OracleError::Setup { step, errno: -facts.error.load(Relaxed) });
        }
        let count = (board.own_count.load(Relaxed) as usize).min(MOST_OWN);
        let measured = Measured {
            pid: pid.as_raw(),
            brk: facts.brk.load(Relaxed),
            highest: facts.highest.load(Relaxed),
            upwards: facts.upwards.load(Relaxed),
            lowest: facts.lowest.load(Relaxed),
            has_ipc: facts.has_ipc.load(Relaxed) != 0,
            own: board.own[..count].iter().map(|own| (own[0].load(Relaxed), own[1].load(Relaxed))).collect(),
        };
        let start = Start::of(&measured).map_err(OracleError::Proc)?;
        Ok(Self { pid, board, start })
    }

    fn is_gone(pid: Pid) -> bool {
        waitpid(pid, Some(WaitPidFlag::WNOHANG)) != Ok(WaitStatus::StillAlive)
    }

    /// The state of a process before its first operation.
    pub(crate) fn origin(&self) -> &Start {
        &self.start
    }

    /// Whether an operation is made on neither side, since programs cannot have a name space of SysV shared
    /// memory of their own.
    pub(crate) fn leaves_out_segments(&self, op: &Op) -> bool {
        !self.start.has_ipc && op.call.has(Trait::Ipc)
    }

    /// Starts a program with its file in a store. Its steps are read from the returned value; dropping that ends
    /// the program. What cannot be compared on a host with `settings` is left out.
    pub(crate) fn run(
        &mut self,
        (program, store): (&Program, Store),
        effort: Effort,
        settings: &Settings,
    ) -> Steps<'_> {
        let board = &self.board;
        let crowded = program.ops.iter().any(|op| op.call == Call::Crowd);
        for (at, op) in program.ops.iter().enumerate() {
            self.put(at, op, program, (effort, crowded));
            let left_out = leaves_out(settings, op) || self.leaves_out_segments(op);
            board.ops[at].left_out.store(left_out.into(), Relaxed);
        }
        for area in &board.areas {
            area.store(0, Relaxed);
        }
        board.op_count.store(program.ops.len() as u32, Relaxed);
        board.store.store(store as u32, Relaxed);
        board.made_count.store(0, Relaxed);
        let uses_ipc = self.start.has_ipc && program.ops.iter().any(|op| op.call.has(Trait::Ipc));
        board.uses_ipc.store(uses_ipc.into(), Relaxed);
        board.window_end.store(program.window + WINDOW_BYTES, Relaxed);
        board.turn.store(0, Relaxed);
        board.ready.store(0, Relaxed);
        board.consumed.store(0, Relaxed);
        board.stop.store(0, Relaxed);
        board.died.store(0, Relaxed);
        board.alive.store(1, Relaxed);
        let command = board.command.load(Relaxed).wrapping_add(1) & 0x7fff_ffff;
        // Release: a process that sees the command sees the program.
        board.command.store(command.max(1), Release);
        futex_wake(&board.command);
        Steps { oracle: self, next: 0, count: program.ops.len() as u32, command: command.max(1) }
    }

    fn put(&self, at: usize, op: &Op, program: &Program, (effort, crowded): (Effort, bool)) {
        let raw = &self.board.ops[at];
        raw.number.store(op.call.number(), Relaxed);
        raw.process.store(op.process, Relaxed);
        raw.id.store(op.id, Relaxed);
        let makes = match (op.call.has(Trait::Area), op.call.has(Trait::Segment)) {
            (true, _) => MAKES_AREA,
            (false, true) => MAKES_SEGMENT,
            (false, false) => 0,
        };
        raw.makes.store(makes, Relaxed);
        for ((word, area), arg) in raw.words.iter().zip(&raw.areas).zip(op.args) {
            let (value, of) = match arg {
                Word::Exact(value) => (value, 0),
                Word::Window(offset) => (program.window.wrapping_add(offset), 0),
                Word::Area(id, offset) => (offset, id + 1),
                Word::Base(base, offset) => (self.start.base(base).wrapping_add(offset), 0),
                // The board has one more than its number.
                Word::Segment(id) => (u64::MAX, id + 1),
            };
            word.store(value, Relaxed);
            area.store(of, Relaxed);
        }
        // The vector of `mincore` takes the place of the text.
        let has_text = op.call != Call::Mincore;
        let last = at + 1 == program.ops.len();
        let mut want = 0;
        if op.call.class() != Class::Access {
            want |= WANT_STATUS | if op.call.has(Trait::Flags) { WANT_TEXT } else { 0 };
        }
        if effort == Effort::Thorough || at.is_multiple_of(ALL_TEXT_EVERY) || last {
            // The text of a crowd would be cut off in the middle.
            let text = if crowded { WANT_TEXT } else { WANT_ALL_TEXT };
            want |= WANT_STATUS | if has_text { text } else { 0 };
        }
        if effort == Effort::Thorough
            || at % SUMS_EVERY == SUMS_EVERY - 1
            || last
            || matches!(op.call, Call::Fork | Call::Shmctl)
        {
            want |= WANT_SUMS;
        }
        raw.want.store(want, Relaxed);
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        // It may have gone already. The shared memory is used by no process once it is gone.
        let _ = kill(self.pid, Signal::SIGKILL);
        let _ = waitpid(self.pid, None);
    }
}
