//! Swap space for a host that has none, which no other measurement removes.

use super::{LIMIT_LOCK, set_up};
use crate::error::MeasureError;
use crate::lock::Lock;
use crate::swap::Swap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long another measurement is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is checked whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Swap that is in use until this is dropped. It is also removed when the process is killed: its contents are
/// swapped in. No other measurement changes the host's swap meanwhile.
#[derive(Debug)]
pub struct HostSwap {
    /// None where the host has swap of its own.
    shell: Option<Child>,
    lock: Arc<Lock>,
    device: PathBuf,
}

impl HostSwap {
    /// Sets it up, as root. It is used before any other swap of the host.
    ///
    /// # Errors
    ///
    /// [`MeasureError`]: not root, another measurement limits memory, or the kernel does not support it.
    pub fn start(swap: Swap) -> Result<Self, MeasureError> {
        Self::set_up(Lock::take(Path::new(LIMIT_LOCK))?, swap)
    }

    /// The host's own swap, or else this. Waits up to a minute for another measurement: its swap is removed
    /// at its end, and the contents are swapped in as if they had been used.
    ///
    /// # Errors
    ///
    /// As [`HostSwap::start`].
    pub fn where_none(swap: Swap) -> Result<Self, MeasureError> {
        let begun = Instant::now();
        let lock = loop {
            match Lock::take(Path::new(LIMIT_LOCK)) {
                Err(MeasureError::Busy(_)) if begun.elapsed() < PATIENCE => std::thread::sleep(LOOK_EVERY),
                taken => break taken?,
            }
        };
        // The first line is a heading.
        let has_swap = fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1);
        // Leftovers of an earlier one whose shell was killed are removed when swap is set up.
        if has_swap && lock.notes()?.is_empty() {
            return Ok(Self { shell: None, lock, device: PathBuf::new() });
        }
        Self::set_up(lock, swap)
    }

    fn set_up(lock: Arc<Lock>, swap: Swap) -> Result<Self, MeasureError> {
        let (shell, device) =
            set_up(&[&lock], Path::new("-"), Some(swap), Vec::new()).map_err(|why| match why {
                MeasureError::Limit(why) => MeasureError::Swap(why),
                other => other,
            })?;
        Ok(Self { shell: Some(shell), lock, device: device.into() })
    }

    /// The device or file; empty where the host has swap of its own.
    #[must_use]
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Removes it.
    ///
    /// # Errors
    ///
    /// [`MeasureError::NotRestored`] says what is left.
    pub fn finish(mut self) -> Result<(), MeasureError> {
        match self.shell.take().map(|mut shell| shell.wait()) {
            None => Ok(()),
            Some(Ok(status)) if status.success() => Ok(()),
            Some(_) => Err(self.lock.not_restored()),
        }
    }
}

impl Drop for HostSwap {
    fn drop(&mut self) {
        if let Some(mut shell) = self.shell.take() {
            // Closes its input, and waits until it is done.
            let _ = shell.wait();
        }
    }
}
