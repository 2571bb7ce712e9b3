//! A tracer that stays behind with detached programs.
//!
//! A seccomp filter cannot be removed from a process, and without a tracer Linux fails each call that it
//! reports with ENOSYS. So a small process takes the recorder's place. A thread has one tracer at a time:
//! between the two it waits in a call that the filter lets pass, with all signals blocked. The new tracer
//! restores its registers and signal mask.

use super::other_tracer::may_go_on;
use super::probe::find_syscall_from;
use crate::proc::maps::vdso;
use crate::sys::process::{close_all_but, in_background};
use crate::sys::ptrace::{self, EVENT_STOP, Resume};
use crate::sys::wait::{ChildStatus, Waited, wait};
use crate::sys::{Tid, memory, pipe};
use libc::user_regs_struct;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

/// `rseq_cs` in the kernel's structure.
const RSEQ_CS: u64 = 8;

/// A thread in PTRACE_EVENT_STOP, and the state to restore.
#[derive(Debug)]
struct Standing {
    tid: Tid,
    regs: user_regs_struct,
    mask: u64,
    /// Where its program has a `syscall` instruction.
    instruction: u64,
    /// The restartable sequence that it is in: the address of `rseq_cs`, and its value.
    sequence: Option<(u64, u64)>,
}

impl Standing {
    /// `None` if the thread cannot be made to wait.
    fn new(tid: Tid) -> Option<Self> {
        let instruction = find_syscall_from(tid, vdso(tid)?)?;
        let regs = ptrace::registers(tid).ok()??;
        let mask = ptrace::signal_mask(tid).ok()?;
        let sequence = ptrace::rseq_area(tid).map(|area| area + RSEQ_CS);
        let sequence = sequence.and_then(|addr| Some((addr, memory::read_u64(tid, addr)?)));
        Some(Self { tid, regs, mask, instruction, sequence: sequence.filter(|(_, note)| *note != 0) })
    }

    /// Makes the thread wait in a call as soon as it is detached.
    fn park(&self) -> bool {
        let mut regs = self.regs;
        // Without a timeout ppoll waits for a signal, and all signals are blocked. All of its arguments are
        // null.
        (regs.rip, regs.rax) = (self.instruction, libc::SYS_ppoll as u64);
        (regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8) = (0, 0, 0, 0, 0);
        // It is no longer in its call, which must not be restarted from here.
        regs.orig_rax = u64::MAX;
        if ptrace::set_signal_mask(self.tid, u64::MAX).is_err() {
            return false;
        }
        // If this fails, the thread was killed.
        ptrace::set_registers(self.tid, regs).is_ok()
    }

    /// Takes the thread over and resumes it where it was.
    fn take_over(&self) {
        // An error means that the thread was killed.
        if ptrace::seize_to_pass_on(self.tid).is_err() || ptrace::interrupt(self.tid).is_err() {
            return;
        }
        loop {
            match wait(Some(self.tid)) {
                Ok(Waited::Thread(_, ChildStatus::Stopped { signal, event: EVENT_STOP })) => {
                    drop(ptrace::set_registers(self.tid, self.regs));
                    drop(ptrace::set_signal_mask(self.tid, self.mask));
                    // Linux cleared `rseq_cs`, as the thread was elsewhere. With it the sequence is
                    // restarted.
                    if let Some((addr, note)) = self.sequence {
                        drop(ptrace::write_u64(self.tid, addr, note));
                    }
                    return pass_on(self.tid, signal, EVENT_STOP);
                }
                Ok(Waited::Thread(tid, ChildStatus::Stopped { signal, event })) => {
                    pass_on(tid, signal, event);
                }
                Ok(Waited::Interrupted) => {}
                Ok(Waited::Thread(_, ChildStatus::Exited(_) | ChildStatus::Killed(_)) | Waited::NoneLeft)
                | Err(_) => return,
            }
        }
    }
}

/// Detaches from threads in PTRACE_EVENT_STOP. If they have a seccomp filter, a tracer stays behind with
/// them where that is permitted.
pub(super) fn detach_all(tids: &[Tid], filtered: bool) {
    let standing: Vec<Standing> =
        tids.iter().filter(|_| filtered).filter_map(|tid| Standing::new(*tid)).collect();
    let handed_over = !standing.is_empty() && hand_over(&standing).is_some();
    for tid in tids {
        if !(handed_over && standing.iter().any(|standing| standing.tid == *tid)) {
            // An error means that the thread was killed.
            drop(ptrace::detach(*tid));
        }
    }
}

/// Detaches from the threads and leaves them to a process that stays behind. `None`: there is no such
/// process, and nothing was changed.
fn hand_over(standing: &[Standing]) -> Option<()> {
    let (permitted, permits) = pipe().ok()?;
    let (detached, detaches) = pipe().ok()?;
    let (mut permits, mut detached) = (File::from(permits), File::from(detached));
    // SAFETY: what runs there reads memory and makes system calls; it takes no lock and no memory.
    unsafe {
        in_background(|| {
            let _ = rustix::process::chdir(c"/");
            close_all_but(permits.as_raw_fd(), detached.as_raw_fd());
            for one in standing {
                // Linux requires the same rights as for tracing a process.
                let permitted = memory::may_read(one.tid, one.instruction);
                drop(permits.write_all(&[u8::from(permitted)]));
            }
            for one in standing {
                let mut parked = [0];
                if detached.read_exact(&mut parked).is_ok() && parked == [1] {
                    one.take_over();
                }
            }
            close_all_but(-1, -1);
            pass_all_on();
        })
        .ok()?;
    }
    drop(permits);
    drop(detached);
    let (mut permitted, mut detaches) = (File::from(permitted), File::from(detaches));
    for one in standing {
        let mut is_permitted = [0];
        let asked = permitted.read_exact(&mut is_permitted).is_ok();
        let parked = asked && is_permitted == [1] && one.park();
        drop(ptrace::detach(one.tid));
        drop(detaches.write_all(&[u8::from(parked)]));
    }
    Some(())
}

/// Resumes each thread from each stop, until none is left.
fn pass_all_on() {
    loop {
        match wait(None) {
            Ok(Waited::Thread(tid, ChildStatus::Stopped { signal, event })) => pass_on(tid, signal, event),
            Ok(Waited::Thread(_, ChildStatus::Exited(_) | ChildStatus::Killed(_)) | Waited::Interrupted) => {}
            Ok(Waited::NoneLeft) | Err(_) => return,
        }
    }
}

/// Resumes a thread as if it had no tracer. Takes no lock and no memory.
fn pass_on(tid: Tid, signal: i32, event: i32) {
    if event == libc::PTRACE_EVENT_SECCOMP && !may_go_on(tid) {
        return;
    }
    let is_stop_signal = matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
    let (how, signal) = match event {
        EVENT_STOP if is_stop_signal => (Resume::Listen, 0),
        0 => (Resume::Continue, signal),
        _ => (Resume::Continue, 0),
    };
    // An error means that the thread was killed.
    drop(ptrace::resume(tid, how, signal));
}
