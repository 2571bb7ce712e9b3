//! The vCPUs of a replay.

use quire_trace::format::TraceHeader;

/// The most vCPUs that a replay uses; recorded CPUs beyond share them.
pub(crate) const MOST_CPUS: u32 = 64;

/// vCPUs that a trace needs.
pub(crate) fn cpus(header: &TraceHeader) -> usize {
    header.cpus.clamp(1, MOST_CPUS) as usize
}
