//! What all tests of frames use: `use crate::support::*`.

pub(crate) use crate::common::*;
pub(crate) use quire_arch::*;
pub(crate) use quire_frame::*;

/// As [`crate::common::frames`], audited at its end.
pub(crate) fn frames(banks: &[(u64, u64)], cpus: usize, pcp: PcpTechnique) -> Audited {
    Audited(crate::common::frames(banks, cpus, pcp))
}

pub(crate) fn frames_of(machine: Machine, pcp: PcpTechnique) -> Audited {
    Audited(crate::common::frames_of(machine, pcp))
}

pub(crate) fn frames_with_watermarks(machine: Machine, min_free_kib: u64) -> Audited {
    Audited(crate::common::frames_with_watermarks(machine, min_free_kib))
}

/// By any configuration.
pub(crate) fn frames_by(machine: Machine, config: FrameConfig) -> Audited {
    Audited(Frames::new(machine, config).unwrap())
}

/// What is known of the zone DMA32.
pub(crate) fn zone(frames: &Frames<Machine>) -> ZoneReport {
    frames.reports().zone_report(ZoneKind::Dma32)
}
