//! Whether the host has the memory for what is about to be made. A process that takes more than its memory
//! cgroup allows is killed, and says nothing.

use crate::error::LabError;
use quire_host::host_memory_available;

/// Memory of the command itself that grows meanwhile: stacks, results, tables of what is mapped.
const OWN: u64 = 24 << 20;

/// Fails if the host does not have `bytes` available for this process, beside what that needs anyway. A host
/// that does not say what it has is taken to have it.
pub(crate) fn check_available(bytes: u64) -> Result<(), LabError> {
    let needed = bytes.saturating_add(OWN);
    match host_memory_available() {
        Some(available) if needed > available => Err(LabError::HostMemory { needed, available }),
        _ => Ok(()),
    }
}

/// Whether [`check_available()`] finds so much.
pub(crate) fn is_available(bytes: u64) -> bool {
    check_available(bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_does_not_have_is_refused_before_it_is_taken() {
        assert!(is_available(0) && !is_available(1 << 60) && !is_available(u64::MAX));
        let error = check_available(1 << 60).expect_err("no host has so much");
        assert!(
            error.to_string().starts_with("it takes 1125899906867200 KiB of the host's memory, and "),
            "{error}"
        );
    }
}
