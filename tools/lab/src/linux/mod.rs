//! The host's Linux doing the same, in a process of its own.
//!
//! The process is forked before a machine is built, so that it has no large memory but its own. It does a
//! round on request, so that Linux's rounds take turns with Quire's. Between `fork` and its exit it allocates
//! nothing: another thread may have held the allocator's lock.

mod child;
mod controls;
mod memory;
mod process;
mod sharer;

pub(crate) use controls::Control;
pub(crate) use memory::Area;
pub(crate) use process::OnHost;

use crate::host_memory::is_available;
use child::Child;
use rustix::fd::OwnedFd;
use rustix::io::{read, write};
use rustix::pipe::pipe;
use rustix::time::{ClockId, clock_gettime};

/// What the process does in a round. It is made before the process is, and allocates nothing in a round.
pub(crate) trait Work {
    /// Does a round and returns its figures. `None` where Linux cannot do it: it has no such folios, does not
    /// let us set its controls, or had no memory.
    fn round(&mut self) -> Option<RoundFigures>;
}

/// The most figures that a round has.
pub(crate) const FIGURES: usize = 6;
/// The figures of a round. Unused ones are 0.
pub(crate) type RoundFigures = [f64; FIGURES];

/// Figures of which the first are `known`.
pub(crate) fn round_figures<const KNOWN: usize>(known: [f64; KNOWN]) -> RoundFigures {
    let mut result = [0.0; FIGURES];
    result[..KNOWN].copy_from_slice(&known);
    result
}

const RESULT: usize = size_of::<RoundFigures>();

const ROUND: u8 = b'r';
const END: u8 = b'e';

/// The process.
#[derive(Debug)]
pub(crate) struct Linux {
    child: Child,
    requests: OwnedFd,
    results: OwnedFd,
}

impl Linux {
    /// Starts the process for `work`. `None` where the host cannot spare `memory` bytes.
    pub(crate) fn start(memory: u64, mut work: impl Work) -> Option<Self> {
        if !is_available(memory) {
            return None;
        }
        let (requests_end, requests) = pipe().ok()?;
        let (results, results_end) = pipe().ok()?;
        let mut requests = Some(requests);
        let child = Child::fork(|| {
            // Otherwise it would wait for itself after this process has ended.
            drop(requests.take());
            serve(&mut work, &requests_end, &results_end);
        })?;
        Some(Self { child, requests: requests?, results })
    }

    /// Does a round and returns its figures. `None` where Linux cannot do the same.
    pub(crate) fn round(&mut self) -> Option<RoundFigures> {
        write(&self.requests, &[ROUND]).ok()?;
        let mut bytes = [0; RESULT];
        (read(&self.results, &mut bytes).ok()? == RESULT).then_some(())?;
        let mut result = RoundFigures::default();
        for (figure, bytes) in result.iter_mut().zip(bytes.as_chunks().0) {
            *figure = f64::from_ne_bytes(*bytes);
        }
        result.iter().all(|figure| figure.is_finite()).then_some(result)
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        let _ = write(&self.requests, &[END]);
        self.child.wait();
    }
}

/// The main loop of the process: rounds until it is told to end, or the requester is gone. It finishes its
/// round and restores the controls also when that process panics or is killed.
fn serve(work: &mut impl Work, requests: &OwnedFd, results: &OwnedFd) {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let mut request = [0];
    while matches!(read(requests, &mut request), Ok(1)) && request[0] == ROUND {
        let result = work.round().unwrap_or([f64::NAN; FIGURES]);
        let mut bytes = [0; RESULT];
        for (bytes, figure) in bytes.as_chunks_mut().0.iter_mut().zip(result) {
            *bytes = figure.to_ne_bytes();
        }
        if write(results, &bytes).is_err() {
            break;
        }
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds that the calling thread was on a CPU.
pub(crate) fn cpu_time() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

/// Nanoseconds on the clock that all processes share.
pub(crate) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Count(u32);

    impl Work for Count {
        fn round(&mut self) -> Option<RoundFigures> {
            self.0 += 1;
            (self.0 < 3).then(|| round_figures([f64::from(self.0), 7.0]))
        }
    }

    #[test]
    fn the_process_keeps_its_state_from_round_to_round_until_it_cannot_go_on() {
        let mut linux = Linux::start(0, Count::default()).expect("a process");
        assert_eq!(linux.round(), Some(round_figures([1.0, 7.0])));
        assert_eq!(linux.round(), Some(round_figures([2.0, 7.0])));
        assert_eq!(linux.round(), None);
        assert!(Linux::start(u64::MAX, Count::default()).is_none(), "no host has so much memory");
    }
}
