//! The oracle: processes of the host's Linux that make the calls of a program.

mod access;
mod board;
mod child;
mod huge;
mod image;
mod observe;
mod prepare;
mod raw;
mod start;
mod steps;
mod swap;
mod text;

pub(crate) use huge::Interference;
pub(crate) use prepare::{FILE, FILE_BYTES, FOLDER, PATH_ONLY, READ_ONLY, WRITE_ONLY};
pub(crate) use start::{CAP_IPC_LOCK, CAP_SYS_RAWIO, Start};
pub(crate) use steps::Steps;
pub(crate) use swap::host_swaps;
pub use swap::{HostSwap, HostSwapError};
pub(crate) use text::shown_flags;

use crate::program::{Call, Class, Op, Program, WINDOW_BYTES, Word};
use board::{Board, MOST_OWN, WANT_ALL_TEXT, WANT_STATUS, WANT_SUMS, WANT_TEXT};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use prepare::CpuMask;
use raw::{FORK, KILL, MMAP, MUNMAP, SCHED_GETAFFINITY, WAIT4, futex_wait, futex_wake, syscall};
use start::Measured;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use thiserror::Error;

/// Why the oracle cannot be asked.
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
    /// A process of the oracle died.
    #[error("a process that asked Linux died with wait status {status:#x}")]
    Died {
        /// Its wait status.
        status: u32,
    },
}

/// How much is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// Mappings and pages after each operation; all flags and figures after each call; contents now and then.
    Usual,
    /// Everything after each operation.
    Thorough,
}

/// Operations from one look at all contents to the next, and from one full text of `smaps` to the next.
const SUMS_EVERY: usize = 64;
const ALL_TEXT_EVERY: usize = 16;

/// One of the CPUs that this process may run on, each in its turn.
fn next_cpu() -> CpuMask {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let mut allowed: CpuMask = [0; 16];
    // SAFETY: the kernel writes no more than the mask has.
    unsafe {
        let words = allowed.as_mut_ptr().expose_provenance() as u64;
        syscall(SCHED_GETAFFINITY, [0, size_of::<CpuMask>() as u64, words, 0, 0, 0]);
    }
    let cpus: Vec<usize> = (0..1024).filter(|cpu| allowed[cpu / 64] & 1 << (cpu % 64) != 0).collect();
    if let Some(&cpu) = cpus.get(NEXT.fetch_add(1, Relaxed) % cpus.len().max(1)) {
        allowed = [0; 16];
        allowed[cpu / 64] = 1 << (cpu % 64);
    }
    allowed
}

/// A template process that programs are forked from.
pub(crate) struct Oracle {
    pid: i64,
    board: &'static Board,
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
        let len = size_of::<Board>() as u64;
        // SAFETY: a new shared anonymous mapping (PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS).
        let board = unsafe { syscall(MMAP, [0, len, 3, 0x21, u64::MAX, 0]) };
        if board < 0 {
            return Err(OracleError::Setup { step: "no shared memory", errno: -board });
        }
        // SAFETY: mapped above, zeroed (a valid board), and unmapped only when the oracle goes.
        let board: &'static Board = unsafe { &*core::ptr::with_exposed_provenance::<Board>(board as usize) };
        board.image[0].store(image.0, Relaxed);
        board.image[1].store(image.1, Relaxed);
        board.facts.brk.store(brk, Relaxed);
        board.parent.store(std::process::id(), Relaxed);
        let cpus = next_cpu();
        // SAFETY: the child runs code only that needs no lock that another thread could have held.
        let pid = unsafe { syscall(FORK, [0; 6]) };
        if pid == 0 {
            prepare::become_template(board, len, &cpus);
        }
        if pid < 0 {
            return Err(OracleError::Setup { step: "fork", errno: -pid });
        }
        while board.over.load(Acquire) != u32::MAX {
            futex_wait(&board.over, 0);
            if board.over.load(Acquire) != u32::MAX && Self::is_gone(pid) {
                return Err(OracleError::Setup { step: "the template died", errno: 0 });
            }
        }
        let facts = &board.facts;
        if let Some(step) = prepare::Step::what_failed(facts.failed_step.load(Relaxed)) {
            return Err(OracleError::Setup { step, errno: -facts.error.load(Relaxed) });
        }
        let count = (board.own_count.load(Relaxed) as usize).min(MOST_OWN);
        let measured = Measured {
            pid: pid as u32,
            brk: facts.brk.load(Relaxed),
            highest: facts.highest.load(Relaxed),
            upwards: facts.upwards.load(Relaxed),
            lowest: facts.lowest.load(Relaxed),
            own: board.own[..count].iter().map(|own| (own[0].load(Relaxed), own[1].load(Relaxed))).collect(),
        };
        let file = std::fs::metadata(format!("/proc/{pid}/fd/{FILE}")).map_err(OracleError::Proc)?;
        board.file_inode.store(file.ino(), Relaxed);
        let start = Start::of(&measured).map_err(OracleError::Proc)?;
        Ok(Self { pid, board, start })
    }

    fn is_gone(pid: i64) -> bool {
        const WNOHANG: u64 = 1;
        // SAFETY: asks for the state of our own child.
        unsafe { syscall(WAIT4, [pid.cast_unsigned(), 0, WNOHANG, 0, 0, 0]) != 0 }
    }

    /// What a process is before its first operation.
    pub(crate) fn origin(&self) -> &Start {
        &self.start
    }

    /// Starts a program. Its steps are read from the returned value; dropping that ends the program.
    pub(crate) fn run(&mut self, program: &Program, effort: Effort) -> Steps<'_> {
        let board = self.board;
        for (at, op) in program.ops.iter().enumerate() {
            self.put(at, op, program, effort);
        }
        for area in &board.areas {
            area.store(0, Relaxed);
        }
        board.op_count.store(program.ops.len() as u32, Relaxed);
        board.window_end.store(program.window + WINDOW_BYTES, Relaxed);
        board.turn.store(0, Relaxed);
        board.ready.store(0, Relaxed);
        board.consumed.store(0, Relaxed);
        board.stop.store(0, Relaxed);
        board.died.store(0, Relaxed);
        board.alive.store(1, Relaxed);
        let command = board.command.load(Relaxed).wrapping_add(1) & 0x7fff_ffff;
        // Release: who sees the command sees the program.
        board.command.store(command.max(1), Release);
        futex_wake(&board.command);
        Steps { oracle: self, next: 0, count: program.ops.len() as u32, command: command.max(1) }
    }

    fn put(&self, at: usize, op: &Op, program: &Program, effort: Effort) {
        let raw = &self.board.ops[at];
        raw.number.store(op.call.number(), Relaxed);
        raw.process.store(op.process, Relaxed);
        raw.id.store(op.id, Relaxed);
        raw.makes_area.store(op.call.makes_area().into(), Relaxed);
        for ((word, area), arg) in raw.words.iter().zip(&raw.areas).zip(op.args) {
            let (value, of) = match arg {
                Word::Exact(value) => (value, 0),
                Word::Window(offset) => (program.window.wrapping_add(offset), 0),
                Word::Area(id, offset) => (offset, id + 1),
                Word::Base(base, offset) => (self.start.base(base).wrapping_add(offset), 0),
            };
            word.store(value, Relaxed);
            area.store(of, Relaxed);
        }
        // The vector of `mincore` takes the place of the text.
        let has_text = op.call != Call::Mincore;
        let last = at + 1 == program.ops.len();
        let mut want = 0;
        if op.call.class() != Class::Access {
            want |= WANT_STATUS | if op.call.changes_flags() { WANT_TEXT } else { 0 };
        }
        if effort == Effort::Thorough || at.is_multiple_of(ALL_TEXT_EVERY) || last {
            want |= WANT_STATUS | if has_text { WANT_ALL_TEXT } else { 0 };
        }
        if effort == Effort::Thorough || at % SUMS_EVERY == SUMS_EVERY - 1 || last || op.call == Call::Fork {
            want |= WANT_SUMS;
        }
        raw.want.store(want, Relaxed);
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let pid = self.pid.cast_unsigned();
        // SAFETY: the child is ours, and the shared memory is used by none once it is gone.
        unsafe {
            syscall(KILL, [pid, 9, 0, 0, 0, 0]);
            syscall(WAIT4, [pid, 0, 0, 0, 0, 0]);
            let board = core::ptr::from_ref(self.board).expose_provenance() as u64;
            syscall(MUNMAP, [board, size_of::<Board>() as u64, 0, 0, 0, 0]);
        }
    }
}
