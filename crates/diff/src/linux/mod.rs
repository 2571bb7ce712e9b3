//! The oracle: processes of the host's Linux that make the calls of a program.

mod access;
mod board;
mod child;
mod observe;
mod prepare;
mod raw;
mod start;
mod text;

pub(crate) use prepare::{FILE, FILE_BYTES, FOLDER, PATH_ONLY, READ_ONLY, WRITE_ONLY};
pub(crate) use start::Start;
pub(crate) use text::shown_flags;

use crate::observation::{Detail, Observation, Outcome, Region, Wanted};
use crate::program::{Call, Class, Op, Program, WINDOW_BYTES, Word};
use board::{
    Board, DONE, MOST_OWN, MOST_RUNS, MOST_VMAS, SLOTS, Slot, WAKE_EVERY, WANT_ALL_TEXT, WANT_STATUS,
    WANT_SUMS, WANT_TEXT,
};
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use quire_arch::PAGE_SIZE;
use quire_mm::{PageState, VmFlags};
use raw::{FORK, KILL, MMAP, MUNMAP, WAIT4, futex_wait, futex_wake, syscall};
use start::Measured;
use std::fmt;
use std::os::unix::fs::MetadataExt;

/// Why the oracle cannot be asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum OracleError {
    /// Linux refused something that the oracle needs before its first program.
    Setup {
        /// What.
        step: &'static str,
        /// The error number, or 0.
        errno: i64,
    },
    /// A text of /proc could not be read.
    Proc(std::io::Error),
    /// A process of the oracle died.
    Died {
        /// Its wait status.
        status: u32,
    },
}

impl fmt::Display for OracleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setup { step, errno } => {
                write!(f, "cannot prepare a process of Linux: {step} (errno {errno})")
            }
            Self::Proc(error) => write!(f, "cannot read /proc: {error}"),
            Self::Died { status } => {
                write!(f, "a process that asked Linux died with wait status {status:#x}")
            }
        }
    }
}

impl std::error::Error for OracleError {}

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

/// The mappings of the running executable, and what follows them without a gap (its zeroed data).
fn image() -> Result<(u64, u64), OracleError> {
    let text = std::fs::read_to_string("/proc/self/maps").map_err(OracleError::Proc)?;
    let code = child::template as *const () as u64;
    let rows: Vec<(u64, u64, &str)> = text
        .lines()
        .filter_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let name = rest.split_ascii_whitespace().nth(4).unwrap_or("");
            Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?, name))
        })
        .collect();
    let name = rows.iter().find(|row| (row.0..row.1).contains(&code)).map_or("", |row| row.2);
    let start = rows.iter().find(|row| row.2 == name).map_or(0, |row| row.0);
    let mut end = rows.iter().rfind(|row| row.2 == name).map_or(0, |row| row.1);
    for row in rows.iter().filter(|row| row.2.is_empty()) {
        end = if row.0 == end { row.1 } else { end };
    }
    Ok((start, end))
}

fn initial_break() -> Result<u64, OracleError> {
    let stat = std::fs::read_to_string("/proc/self/stat").map_err(OracleError::Proc)?;
    let field = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(47 - 3)?.parse().ok());
    field.ok_or(OracleError::Setup { step: "no program break in /proc/self/stat", errno: 0 })
}

impl Oracle {
    /// Starts a template process. It ends with the thread that started it, or when the oracle is dropped.
    ///
    /// # Errors
    ///
    /// [`OracleError::Setup`] on a Linux that is too old (6.11 is needed) or that forbids what the oracle does.
    pub(crate) fn start() -> Result<Self, OracleError> {
        let (image, brk) = (image()?, initial_break()?);
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
        // SAFETY: the child runs code only that needs no lock that another thread could have held.
        let pid = unsafe { syscall(FORK, [0; 6]) };
        if pid == 0 {
            prepare::become_template(board, len);
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
        let step = match facts.failed_step.load(Relaxed) {
            0 => None,
            1 => Some("no room for a stack at 32 TiB"),
            2 => Some("no room for the shared memory at 96 TiB"),
            3 => Some("no memory file"),
            4 => Some("PROCMAP_QUERY is not known (Linux 6.11 or later is needed)"),
            _ => Some("too many mappings cannot be given up"),
        };
        if let Some(step) = step {
            return Err(OracleError::Setup { step, errno: -facts.error.load(Relaxed) });
        }
        let count = (board.own_count.load(Relaxed) as usize).min(MOST_OWN);
        let measured = Measured {
            pid: pid as u32,
            brk: facts.brk.load(Relaxed),
            highest: facts.highest.load(Relaxed),
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

    /// Starts a program. Its steps are read from what is answered; dropping that ends the program.
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
                Word::Window(offset) => (program.window + offset, 0),
                Word::Area(id, offset) => (offset, id + 1),
                Word::Base(base, offset) => (self.start.base(base).wrapping_add(offset), 0),
            };
            word.store(value, Relaxed);
            area.store(of, Relaxed);
        }
        // The answer of `mincore` takes the place of the text.
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
        // SAFETY: the child is ours, and the shared memory is used by nobody once it is gone.
        unsafe {
            syscall(KILL, [pid, 9, 0, 0, 0, 0]);
            syscall(WAIT4, [pid, 0, 0, 0, 0, 0]);
            let board = core::ptr::from_ref(self.board).expose_provenance() as u64;
            syscall(MUNMAP, [board, size_of::<Board>() as u64, 0, 0, 0, 0]);
        }
    }
}

/// A program that is being run by the oracle.
pub(crate) struct Steps<'o> {
    oracle: &'o mut Oracle,
    next: u32,
    count: u32,
    command: u32,
}

impl Steps<'_> {
    /// Reads what the next operation came to and what was to be seen then. `None` for an observation: its process does
    /// not exist (any more).
    pub(crate) fn next(
        &mut self,
        op: &Op,
        seen: &mut Observation,
    ) -> Result<(Outcome, Option<Wanted>), OracleError> {
        let board = self.oracle.board;
        loop {
            // Acquire: pairs with the release of the process that filled the slot.
            let ready = board.ready.load(Acquire);
            if ready != self.next {
                break;
            }
            let status = board.died.load(Relaxed);
            if status != 0 || Oracle::is_gone(self.oracle.pid) {
                return Err(OracleError::Died { status });
            }
            futex_wait(&board.ready, ready);
        }
        let slot = &board.slots[(self.next % SLOTS) as usize];
        let outcome = outcome(op, slot);
        seen.clear();
        let listed = (slot.vma_count.load(Relaxed) as usize) < MOST_VMAS
            && (slot.run_count.load(Relaxed) as usize) < MOST_RUNS;
        // What did not fit cannot be compared.
        let observed = slot.observed.load(Relaxed) != 0 && (listed || slot.cut.load(Relaxed) == 0);
        let wanted = observed.then(|| self.read(op, slot, seen));
        self.next += 1;
        board.consumed.store(self.next, Release);
        if self.next.is_multiple_of(WAKE_EVERY) {
            futex_wake(&board.consumed);
        }
        Ok((outcome, wanted))
    }

    fn read(&self, op: &Op, slot: &Slot, seen: &mut Observation) -> Wanted {
        let board = self.oracle.board;
        for vma in &slot.vmas[..slot.vma_count.load(Relaxed) as usize] {
            let [start, end, raw, offset] = vma.each_ref().map(|word| word.load(Relaxed));
            let mut flags = VmFlags::empty();
            for (bit, flag) in [
                (observe::VMA_READABLE, VmFlags::READ),
                (observe::VMA_WRITABLE, VmFlags::WRITE),
                (observe::VMA_EXECUTABLE, VmFlags::EXEC),
                (observe::VMA_SHARED, VmFlags::MAYSHARE),
            ] {
                flags.set(flag, raw & bit != 0);
            }
            let file = raw & observe::VMA_FILE != 0;
            seen.regions.push(Region { start, end, flags, offset, file });
        }
        for run in &slot.runs[..slot.run_count.load(Relaxed) as usize] {
            let [start, end, categories] = run.each_ref().map(|word| word.load(Relaxed));
            if categories & observe::PAGE_IS_PRESENT == 0 {
                continue;
            }
            let state = match categories & (observe::PAGE_IS_FILE | observe::PAGE_IS_PFNZERO) {
                0 => PageState::Anonymous,
                only if only & observe::PAGE_IS_PFNZERO != 0 => PageState::Zero,
                _ => PageState::File,
            };
            seen.add_pages(start, end, state);
        }
        let sums = &slot.sums[..slot.sum_count.load(Relaxed) as usize];
        seen.sums.extend(sums.iter().map(|sum| (sum[0].load(Relaxed), sum[1].load(Relaxed))));
        let index = self.next as usize;
        let want = board.ops[index].want.load(Relaxed);
        let all_summed = slot.cut.load(Relaxed) == 0;
        let mut wanted = Wanted { sums: want & WANT_SUMS != 0 && all_summed, ..Wanted::default() };
        if want & WANT_STATUS != 0 {
            wanted.figures = true;
            let text = as_text(&slot.status[..slot.status_len.load(Relaxed) as usize]);
            seen.figures = Some(text::status(text));
        }
        if slot.text_len.load(Relaxed) > 0 {
            let all = want & WANT_ALL_TEXT != 0;
            wanted.details_until = if all { u64::MAX } else { board.window_end.load(Relaxed) };
            let text = as_text(&slot.text[..slot.text_len.load(Relaxed) as usize]);
            text::smaps(text, |detail: Detail, _| seen.details.push(detail));
        }
        if op.call == Call::Mincore {
            let pages = self.mincore_pages(index);
            seen.residency.extend(slot.text[..pages].iter().map(|page| page.load(Relaxed) & 1 != 0));
        }
        wanted
    }

    /// How many pages a `mincore` answered, if it succeeded.
    fn mincore_pages(&self, index: usize) -> usize {
        let len = self.oracle.board.ops[index].words[1].load(Relaxed);
        (len.div_ceil(PAGE_SIZE) as usize).min(board::TEXT_BYTES)
    }

    /// The address of the area that operation `id` made.
    pub(crate) fn area(&self, id: u32) -> Option<u64> {
        let addr = self.oracle.board.areas[id as usize].load(Relaxed);
        (addr != 0).then_some(addr)
    }

    pub(crate) fn origin(&self) -> &Start {
        &self.oracle.start
    }
}

impl Drop for Steps<'_> {
    /// Ends the program and waits until all of its processes are gone.
    fn drop(&mut self) {
        let board = self.oracle.board;
        if self.next < self.count {
            board.stop.store(1, Relaxed);
        }
        while board.over.load(Acquire) != self.command {
            futex_wake(&board.consumed);
            futex_wake(&board.turn);
            let over = board.over.load(Acquire);
            if over != self.command {
                futex_wait(&board.over, over);
            }
            if Oracle::is_gone(self.oracle.pid) {
                return;
            }
        }
    }
}

fn outcome(op: &Op, slot: &Slot) -> Outcome {
    if slot.state.load(Relaxed) != DONE {
        return Outcome::NotMade;
    }
    let value = slot.value.load(Relaxed);
    match slot.signal.load(Relaxed) {
        0 => Outcome::Value(value),
        signal => {
            let done = if op.call == Call::Fill { value.cast_unsigned() } else { 0 };
            Outcome::Signal { signal, code: slot.code.load(Relaxed), done }
        }
    }
}

/// What the kernel wrote, which is ASCII.
fn as_text(bytes: &[AtomicU8]) -> &str {
    // SAFETY: `AtomicU8` is laid out as `u8`, and the slot is not written before it is marked as consumed.
    let bytes = unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), bytes.len()) };
    str::from_utf8(bytes).unwrap_or("")
}
