//! Whether the host has the memory for what is about to be made. A process that takes more than its memory
//! cgroup allows is killed, and says nothing.

use crate::error::{Done, LabError};
use quire_host::host_memory_available;

/// Memory of the command itself that grows meanwhile: stacks, results, tables of what is mapped.
const OWN: u64 = 24 << 20;

/// Fails if the host does not have `bytes` available for this process, beside what that needs anyway. A host
/// that does not say what it has is taken to have it.
pub(crate) fn check_available(bytes: u64) -> Done {
    let needed = bytes.saturating_add(OWN);
    match host_memory_available() {
        Some(available) if needed > available => Err(LabError::HostMemory(needed, available)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_does_not_have_is_refused_before_it_is_taken() {
        assert!(check_available(0).is_ok() && check_available(u64::MAX).is_err());
        let error = check_available(1 << 60).expect_err("no host has so much");
        assert!(
            error.to_string().starts_with("it takes 1125899906867200 KiB of the host's memory, and "),
            "{error}"
        );
    }
}
