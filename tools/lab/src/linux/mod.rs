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

pub(crate) use process::rounds_on_host;

use crate::error::LabError;
use crate::host_memory::is_available;
use crate::rounds::RoundFigures;
use child::Child;
use rustix::fd::OwnedFd;
use rustix::io::{read, write};
use rustix::pipe::pipe;

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
    /// Starts the process, which does a round with each call of `round`. That allocates nothing, and returns
    /// `None` where Linux cannot do it: it has no such folios, does not let us set its controls, or had no
    /// memory. No process where the host cannot spare `memory` bytes.
    pub(crate) fn start(memory: u64, mut round: impl FnMut() -> Option<RoundFigures>) -> Option<Self> {
        if !is_available(memory) {
            return None;
        }
        let (requests_end, requests) = pipe().ok()?;
        let (results, results_end) = pipe().ok()?;
        let mut requests = Some(requests);
        let child = Child::fork(|| {
            // Otherwise it would wait for itself after this process has ended.
            drop(requests.take());
            serve(&mut round, &requests_end, &results_end);
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

/// The result of a call that returns 0 on success.
fn done(result: i32) -> Result<(), LabError> {
    if result == 0 { Ok(()) } else { Err(LabError::Linux) }
}

/// The number at the start of `text`, behind blanks.
fn number(text: &[u8]) -> u64 {
    let digits = text.trim_ascii_start().iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, &digit| number * 10 + u64::from(digit - b'0'))
}

/// The main loop of the process: rounds until it is told to end, or the requester is gone. It finishes its
/// round and restores the controls also when that process panics or is killed.
fn serve(round: &mut impl FnMut() -> Option<RoundFigures>, requests: &OwnedFd, results: &OwnedFd) {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let mut request = [0];
    while matches!(read(requests, &mut request), Ok(1)) && request[0] == ROUND {
        let result = round().unwrap_or([f64::NAN; _]);
        let mut bytes = [0; RESULT];
        for (bytes, figure) in bytes.as_chunks_mut().0.iter_mut().zip(result) {
            *bytes = figure.to_ne_bytes();
        }
        if write(results, &bytes).is_err() {
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
            (count < 3).then(|| round_figures([f64::from(count), 7.0]))
        };
        let mut linux = Linux::start(0, round).expect("a process");
        assert_eq!(linux.round(), Some(round_figures([1.0, 7.0])));
        assert_eq!(linux.round(), Some(round_figures([2.0, 7.0])));
        assert_eq!(linux.round(), None);
        assert!(Linux::start(u64::MAX, || None).is_none(), "no host has so much memory");
    }
}
