//! Keeps this process off khugepaged's list while it measures: what khugepaged scans and collapses here would
//! be counted as the program's, and would delay its turn.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::MeasureError;
use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};

/// How many measurements run in this process, and whether huge pages were off before the first.
static RUNNING: Mutex<(usize, bool)> = Mutex::new((0, false));

/// Huge pages are off for this process while one exists.
#[derive(Debug)]
pub(crate) struct Quiet(());

impl Quiet {
    pub(crate) fn start() -> Self {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if running.0 == 0 {
            running.1 = transparent_huge_pages_are_disabled().unwrap_or(false);
            // A kernel without huge pages has no khugepaged either.
            let _ = disable_transparent_huge_pages(true);
        }
        running.0 += 1;
        Self(())
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.0 -= 1;
        if running.0 == 0 {
            let _ = disable_transparent_huge_pages(running.1);
        }
    }
}

/// Huge pages are on for this process while one exists, and no measurement starts in it.
#[derive(Debug)]
pub(crate) struct Loud {
    before: bool,
    _running: MutexGuard<'static, (usize, bool)>,
}

impl Loud {
    pub(crate) fn start() -> Result<Self, MeasureError> {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if running.0 > 0 {
            let why = io::Error::other("a program is being measured by this process");
            return Err(MeasureError::system("cannot calibrate", why));
        }
        let before = transparent_huge_pages_are_disabled().unwrap_or(false);
        let _ = disable_transparent_huge_pages(false);
        Ok(Self { before, _running: running })
    }
}

impl Drop for Loud {
    fn drop(&mut self) {
        let _ = disable_transparent_huge_pages(self.before);
    }
}
