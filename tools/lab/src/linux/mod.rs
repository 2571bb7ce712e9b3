//! The host's Linux doing the same, in a process of its own.
//!
//! The process is forked before a machine is built, so that it has no large memory but its own. It does a
//! round on request, so that Linux's rounds take turns with Quire's.

mod host;

pub(crate) use host::rounds_on_host;

use crate::host_memory::check_available;
use crate::rounds::RoundFigures;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A process that this one made and has not waited for.
#[derive(Clone, Copy, Debug)]
struct Child(Pid);

impl Child {
    /// Forks a child that calls `work` and exits.
    fn fork(work: impl FnOnce()) -> Option<Self> {
        // SAFETY: the child has this thread alone, and ends with `_exit`. What it calls takes no lock that
        // another thread may have held, but the allocator's, which the C library's `fork` sees to.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // A panic, which has been printed, ends the child alone.
            let _ = catch_unwind(AssertUnwindSafe(work));
            // SAFETY: ends the process at once, as after a fork.
            unsafe { libc::_exit(0) };
        }
        if pid > 0 { Pid::from_raw(pid).map(Self) } else { None }
    }

    fn kill(self) {
        let _ = kill_process(self.0, Signal::KILL);
    }

    /// Waits for its exit.
    fn wait(self) {
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}

/// The process.
#[derive(Debug)]
pub(crate) struct Linux {
    child: Child,
    line: UnixStream,
}

impl Linux {
    /// Starts the process, which does a round with each call of `round`. That returns `None` where Linux
    /// cannot do it: it has no such folios, does not let us set its controls, or had no memory. No process
    /// where the host cannot spare `memory` bytes.
    pub(crate) fn start(memory: u64, mut round: impl FnMut() -> Option<RoundFigures>) -> Option<Self> {
        check_available(memory).ok()?;
        let (line, mut own) = UnixStream::pair().ok()?;
        let mut line = Some(line);
        let child = Child::fork(|| {
            // Otherwise it would wait for itself after this process has ended.
            drop(line.take());
            serve(&mut round, &mut own);
        })?;
        Some(Self { child, line: line? })
    }

    /// Does a round and returns its figures. `None` where Linux cannot do the same.
    pub(crate) fn round(&mut self) -> Option<RoundFigures> {
        self.line.write_all(&[0]).ok()?;
        let mut bytes = RoundFigures::default().map(f64::to_ne_bytes);
        self.line.read_exact(bytes.as_flattened_mut()).ok()?;
        let figures = bytes.map(f64::from_ne_bytes);
        figures.iter().all(|figure| figure.is_finite()).then_some(figures)
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        let _ = self.line.shutdown(Shutdown::Both);
        self.child.wait();
    }
}

/// The main loop of the process: rounds until the requester is gone. It finishes its round and restores the
/// controls also when that process panics or is killed.
fn serve(round: &mut impl FnMut() -> Option<RoundFigures>, line: &mut UnixStream) {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    while line.read_exact(&mut [0]).is_ok() {
        let figures = round().unwrap_or([f64::NAN; _]).map(f64::to_ne_bytes);
        if line.write_all(figures.as_flattened()).is_err() {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::round_figures;

    #[test]
    fn the_process_keeps_its_state_from_round_to_round_until_it_cannot_go_on() {
        let mut count = 0;
        let round = move || {
            count += 1;
            (count < 3).then(|| round_figures(&[f64::from(count), 7.0]))
        };
        let mut linux = Linux::start(0, round).expect("a process");
        assert_eq!(linux.round(), Some(round_figures(&[1.0, 7.0])));
        assert_eq!(linux.round(), Some(round_figures(&[2.0, 7.0])));
        assert_eq!(linux.round(), None);
        assert!(Linux::start(u64::MAX, || None).is_none(), "no host has so much memory");
    }
}
