//! Whether the host has the memory for what is about to be made. A process that takes more than its memory
//! cgroup allows is killed, and says nothing.

use crate::error::LabError;
use quire_host::host_memory_available;

/// Memory of the command itself that grows meanwhile: stacks, results, tables of what is mapped.
const OWN: u64 = 24 << 20;

/// Whether the host has `bytes` for this process, beside what that needs anyway. Where it does not say what
/// it has, it does.
pub(crate) fn has_room(bytes: u64) -> bool {
    host_memory_available().is_none_or(|available| fits(bytes, available))
}

/// Fails if the host does not have `bytes` for this process.
pub(crate) fn make_room(bytes: u64) -> Result<(), LabError> {
    match host_memory_available() {
        Some(available) if !fits(bytes, available) => {
            Err(LabError::HostMemory { needed: bytes.saturating_add(OWN), available })
        }
        _ => Ok(()),
    }
}

fn fits(bytes: u64, available: u64) -> bool {
    bytes.saturating_add(OWN) <= available
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_does_not_have_is_refused_before_it_is_taken() {
        assert!(fits(0, OWN) && !fits(1, OWN) && !fits(u64::MAX, u64::MAX - 1));
        assert!(has_room(0) && make_room(0).is_ok());
        assert!(!has_room(1 << 60));
        let error = make_room(1 << 60).expect_err("no host has so much");
        assert!(
            error.to_string().starts_with("it takes 1125899906867200 KiB of the host's memory, and "),
            "{error}"
        );
    }
}
