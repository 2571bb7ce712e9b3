//! Swap space for a host that has none.

use super::{LIMIT_LOCK, set_up};
use crate::error::MeasureError;
use crate::lock::Lock;
use crate::swap::Swap;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;

/// Swap that is in use until this is dropped. It is taken away, too, when the process is killed: what is in it comes
/// back into memory.
#[derive(Debug)]
pub struct HostSwap {
    shell: Option<Child>,
    lock: Arc<Lock>,
    device: PathBuf,
}

impl HostSwap {
    /// Sets it up, as root. It is used before any other swap of the host.
    ///
    /// # Errors
    ///
    /// [`MeasureError`]: not root, another measurement limits memory, or the kernel does not have what it takes.
    pub fn start(swap: Swap) -> Result<Self, MeasureError> {
        let lock = Lock::take(Path::new(LIMIT_LOCK))?;
        let (shell, device) =
            set_up(&[&lock], Path::new("-"), Some(swap), Vec::new()).map_err(|why| match why {
                MeasureError::Limit(why) => MeasureError::Swap(why),
                other => other,
            })?;
        Ok(Self { shell: Some(shell), lock, device: device.into() })
    }

    /// The device or file.
    #[must_use]
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Takes it away.
    ///
    /// # Errors
    ///
    /// [`MeasureError::NotRestored`] says what is left.
    pub fn finish(mut self) -> Result<(), MeasureError> {
        match self.shell.take().map(|mut shell| shell.wait()) {
            Some(Ok(status)) if status.success() => Ok(()),
            _ => Err(self.lock.not_restored()),
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
