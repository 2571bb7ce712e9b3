//! Probing where Linux would place memory in a new program.
//!
//! No file has the address from which Linux searches for free ranges. But a thread in the stop at the end
//! of its exec can be made to map pages: two calls give the direction and the address. Everything is
//! restored afterwards; the program itself has not run one instruction.

use super::status_queue::StatusQueue;
use crate::sys::ptrace::{self, EVENT_STOP, Resume, SyscallStop};
use crate::sys::time::now;
use crate::sys::wait::{ChildStatus, Waited, wait};
use crate::sys::{Tid, memory, signals};
use libc::user_regs_struct;
use nix::sys::signal::Signal;
use quire_trace::event::{BaseSource, Direction, ExecGain, Mapping, MmapBase, is_error};

const PAGE: u64 = 4096;
/// The `syscall` instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The results of the probe.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Probed {
    pub(super) mmap_base: Option<MmapBase>,
    pub(super) brk: Option<u64>,
    /// The lowest address that a mapping without `MAP_FIXED` gets.
    pub(super) lowest_placed: Option<u64>,
    /// Whether memory may become executable.
    pub(super) exec_gain: ExecGain,
    /// Linux removed the perf events of the thread: its program has other privileges than it may show. `None`
    /// if that is not known.
    pub(super) is_hidden: Option<bool>,
}

/// Probes the program of a thread in the stop at the end of its exec. Reports of the thread in the
/// meantime are put into `pending`. `may_ask`: the program has no filter that might kill it for calls that
/// programs do not need to start.
pub(super) fn probe(tid: Tid, mappings: &[Mapping], pending: &mut StatusQueue, may_ask: bool) -> Probed {
    let mut inferred = Probed { mmap_base: infer(mappings), ..Probed::default() };
    let Some(mut session) = Session::begin(tid, mappings, pending) else { return inferred };
    let brk = session.call(libc::SYS_brk, [0; 6]);
    let pages = session.two_pages();
    inferred.lowest_placed = session.lowest_page(mappings);
    if may_ask {
        inferred.exec_gain = session.exec_gain();
        inferred.is_hidden = session.is_hidden();
    }
    session.end();
    let Some((first, second)) = pages else { return Probed { brk, ..inferred } };
    let (direction, addr) = if second < first {
        (Direction::Down, downward(mappings, first))
    } else {
        (Direction::Up, upward(mappings, first))
    };
    Probed { mmap_base: Some(MmapBase { addr, direction, source: BaseSource::Probed }), brk, ..inferred }
}

/// The first free page downward is at `found`: all between it and the base is taken.
fn downward(mappings: &[Mapping], found: u64) -> u64 {
    let mut base = found + PAGE;
    while let Some(next) = mappings.iter().find(|mapping| mapping.start == base) {
        base = next.end;
    }
    base
}

/// The first free page upward is at `found`: all between the base and it is taken.
fn upward(mappings: &[Mapping], found: u64) -> u64 {
    let mut base = found;
    while let Some(next) = mappings.iter().find(|mapping| mapping.end == base) {
        base = next.start;
    }
    base
}

/// If the probe fails: the kernel placed the loader or the vDSO first, so the highest mapping of the
/// group around the vDSO ends at the base.
fn infer(mappings: &[Mapping]) -> Option<MmapBase> {
    let vdso = mappings.iter().find(|mapping| *mapping.name == *b"[vdso]")?;
    let addr = downward(mappings, vdso.end - PAGE);
    Some(MmapBase { addr, direction: Direction::Down, source: BaseSource::Inferred })
}

/// A thread into which calls are injected.
struct Session<'a> {
    tid: Tid,
    saved: user_regs_struct,
    mask: u64,
    instruction: u64,
    pending: &'a mut StatusQueue,
    /// A stop signal that came meanwhile.
    stopped_by: Option<i32>,
    lost: bool,
}

impl<'a> Session<'a> {
    fn begin(tid: Tid, mappings: &[Mapping], pending: &'a mut StatusQueue) -> Option<Self> {
        let instruction = find_syscall(tid, mappings)?;
        let saved = ptrace::registers(tid).ok()??;
        let mask = ptrace::signal_mask(tid).ok()?;
        // Signals wait until the program is restored.
        ptrace::set_signal_mask(tid, u64::MAX).ok()?;
        Some(Self { tid, saved, mask, instruction, pending, stopped_by: None, lost: false })
    }

    /// Maps two pages and unmaps them again; returns where they were.
    fn two_pages(&mut self) -> Option<(u64, u64)> {
        let first = self.page(0)?;
        let second = self.page(0);
        for addr in second.into_iter().chain([first]) {
            self.call(libc::SYS_munmap, [addr, PAGE, 0, 0, 0, 0]);
        }
        second.map(|second| (first, second))
    }

    /// Maps a page as low as Linux permits, and unmaps it again; returns where it was.
    fn lowest_page(&mut self, mappings: &[Mapping]) -> Option<u64> {
        let found = self.page(PAGE)?;
        self.call(libc::SYS_munmap, [found, PAGE, 0, 0, 0, 0]);
        // Above the program, it was not placed at the hint, but at the first free page.
        mappings.first().is_none_or(|lowest| found < lowest.start).then_some(found)
    }

    /// The `PR_SET_MDWE` setting that the program inherited.
    fn exec_gain(&mut self) -> ExecGain {
        match self.call(libc::SYS_prctl, [libc::PR_GET_MDWE as u64, 0, 0, 0, 0, 0]) {
            Some(1) => ExecGain::Refused,
            Some(3) => ExecGain::RefusedNotInherited,
            // A kernel before 6.3 does not know it.
            _ => ExecGain::Allowed,
        }
    }

    /// Whether the program is one that only root may look into (`PR_GET_DUMPABLE` is not 1), as it is if user
    /// or group changed with exec, or the program's file cannot be read.
    fn is_hidden(&mut self) -> Option<bool> {
        self.call(libc::SYS_prctl, [libc::PR_GET_DUMPABLE as u64, 0, 0, 0, 0, 0]).map(|it| it != 1)
    }

    fn page(&mut self, hint: u64) -> Option<u64> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.call(libc::SYS_mmap, [hint, PAGE, libc::PROT_NONE as u64, flags as u64, u64::MAX, 0])
    }

    /// Injects a call; `None` if the call fails or the thread is lost.
    fn call(&mut self, number: i64, args: [u64; 6]) -> Option<u64> {
        if self.lost {
            return None;
        }
        let result = self.try_call(number, args);
        if result.is_none() {
            self.lost = true;
        }
        result.filter(|result| !is_error(*result)).map(|result| result as u64)
    }

    fn try_call(&mut self, number: i64, args: [u64; 6]) -> Option<i64> {
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        let regs = user_regs_struct {
            rip: self.instruction,
            rax: number as u64,
            // Not in a call: the kernel must not restart one.
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.saved
        };
        ptrace::set_registers(self.tid, regs).ok()?;
        loop {
            ptrace::resume(self.tid, Resume::Syscall, 0).ok()?;
            let status = self.wait()?;
            match status {
                // One or two stops on entry (the call itself, the filter), one on exit.
                ChildStatus::Stopped { signal, event: 0 } if signal == libc::SIGTRAP | 0x80 => {
                    if let SyscallStop::Exit { result } = ptrace::syscall_stop(self.tid).ok()? {
                        return Some(result);
                    }
                }
                ChildStatus::Stopped { event: libc::PTRACE_EVENT_SECCOMP, .. } => {}
                ChildStatus::Stopped { signal, event: EVENT_STOP } => self.stopped_by = Some(signal),
                status => {
                    self.pending.push(self.tid, status, now());
                    return None;
                }
            }
        }
    }

    fn wait(&mut self) -> Option<ChildStatus> {
        loop {
            match wait(Some(self.tid)) {
                Ok(Waited::Thread(_, status)) => return Some(status),
                Ok(Waited::Interrupted) => {}
                Ok(Waited::NoneLeft) | Err(_) => return None,
            }
        }
    }

    /// Restores everything.
    fn end(self) {
        if self.lost {
            return;
        }
        // Errors mean that the thread was killed; the next wait reports it.
        drop(ptrace::set_registers(self.tid, self.saved));
        drop(ptrace::set_signal_mask(self.tid, self.mask));
        let stop = self.stopped_by.filter(|signal| *signal != libc::SIGTRAP);
        if let Some(signal) = stop.and_then(|signal| Signal::try_from(signal).ok()) {
            // The program has no thread but this one yet.
            signals::send(self.tid, signal);
        }
    }
}

/// Finds a `syscall` instruction in the vDSO, which every program has. None is written to memory: that would
/// change what is to be recorded.
fn find_syscall(tid: Tid, mappings: &[Mapping]) -> Option<u64> {
    let vdso = mappings.iter().find(|mapping| *mapping.name == *b"[vdso]")?;
    find_syscall_from(tid, vdso.start)
}

/// Finds a `syscall` instruction in the vDSO that begins at `vdso`.
pub(super) fn find_syscall_from(tid: Tid, vdso: u64) -> Option<u64> {
    let mut page = [0; PAGE as usize];
    // It has a few pages; reads beyond it find nothing.
    for start in (vdso..).step_by(page.len()).take(4) {
        let read = memory::read(tid, start, &mut page);
        if let Some(place) = page[..read].windows(SYSCALL.len()).position(|window| window == SYSCALL) {
            return Some(start + place as u64);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, name: &[u8]) -> Mapping {
        Mapping { start, end, name: name.into(), ..Mapping::default() }
    }

    #[test]
    fn the_base_lies_beyond_all_that_is_taken() {
        let taken = [mapping(0x7000, 0x8000, b"[vdso]"), mapping(0x8000, 0xa000, b"/lib/ld.so")];
        assert_eq!(downward(&taken, 0x6000), 0xa000);
        assert_eq!(downward(&taken, 0xe000), 0xf000, "free memory at the top");
        assert_eq!(upward(&taken, 0xa000), 0x7000);
        assert_eq!(upward(&taken, 0x3000), 0x3000, "free memory at the bottom");
        assert_eq!(infer(&taken).map(|base| base.addr), Some(0xa000));
    }
}
