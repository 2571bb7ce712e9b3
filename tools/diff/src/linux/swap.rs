//! A swap device of the comparison's own on the host: compressed RAM, which has written a page when the call
//! returns.
//!
//! It exists for one run. A shell that outlives this process waits for its end and restores the host, also
//! after a failure, a signal from the terminal or a kill.

use super::settings::{Host, Settings};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// Why the host has no swap device for the comparison.
#[derive(Debug, thiserror::Error)]
#[error("no swap device on this host: {0} (it needs root and zram)")]
pub struct HostSwapError(io::Error);

/// The guard's script: it adds a device of `$1` bytes, reports that, waits until no process has the other end
/// of its input open any more, and restores the host. While the device exists, readahead from swap is off:
/// what it reads depends on more than the program. A signal to all, as at the end of a session, must not kill
/// the guard.
const GUARD: &str = r#"
trap "" INT TERM HUP PIPE
readahead=/proc/sys/vm/page-cluster
before=$(cat $readahead) && number=$(cat /sys/class/zram-control/hot_add) || exit
device=/dev/zram$number
restore() {
    swapoff $device
    echo $before >$readahead
    echo 1 >/sys/block/zram$number/reset
    echo $number >/sys/class/zram-control/hot_remove
}
if echo $1 >/sys/block/zram$number/disksize && mkswap $device >/dev/null &&
    echo 0 >$readahead && swapon $device
then
    exec 2>/dev/null
    echo ready
    exec >/dev/null
    cat >/dev/null
fi
restore 2>/dev/null
"#;

/// A swap device of the host that is the comparison's own. Dropping it removes it.
#[derive(Debug)]
pub struct HostSwap {
    bytes: u64,
    /// As long as any process of the comparison has its input open, the device is needed.
    guard: Child,
}

impl HostSwap {
    /// Adds a device of `bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`HostSwapError`], with everything as it was: the host swaps already, or it is not allowed.
    pub fn start(bytes: u64) -> Result<Self, HostSwapError> {
        if Settings::of(&Host::default()).swaps() {
            return Err(HostSwapError(io::Error::other("there is swap space already")));
        }
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard", &bytes.to_string()]).process_group(0);
        guard.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut swap = Self { bytes, guard: guard.spawn().map_err(HostSwapError)? };
        swap.await_ready().map_err(HostSwapError)?;
        Ok(swap)
    }

    fn await_ready(&mut self) -> io::Result<()> {
        let mut said = String::new();
        if let Some(out) = self.guard.stdout.take() {
            BufReader::new(out).read_line(&mut said)?;
        }
        if said == "ready\n" {
            return Ok(());
        }
        let mut why = String::new();
        if let Some(mut out) = self.guard.stderr.take() {
            out.read_to_string(&mut why)?;
        }
        Err(io::Error::other(why.trim().to_owned()))
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for HostSwap {
    fn drop(&mut self) {
        // Closes its input, and waits until the last process of the comparison has ended.
        let _ = self.guard.wait();
    }
}
