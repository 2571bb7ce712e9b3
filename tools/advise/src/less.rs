//! What one replay with less memory found, and one that follows what is used again.

use crate::swap::LimitSwap;
use quire_replay::{PeakUse, PressureFigures, ProcessReport, ReplayReport};
use quire_trace::format::Pressure;
use serde::{Deserialize, Serialize};

/// The result of one replay within a limit.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitOutcome {
    /// Why the program does not fit.
    pub(crate) does_not_fit: Option<String>,
    pub(crate) pressure: PressureFigures,
    pub(crate) may_be_killed: bool,
    /// The size of pages by zstd, as a share of that by LZ4.
    pub(crate) zstd_of_lz4: Option<f64>,
    pub(crate) missing: Missing,
}

/// What a recording lacks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Missing {
    /// Page faults and calls that were lost, and of them those whose events Linux removed.
    pub(crate) lost: u64,
    pub(crate) unheard: u64,
    /// Events that it has.
    pub(crate) events: u64,
    /// The processes that stayed resident though the recorder was to page them out ([`stayed`]), if none of
    /// their memory is shared since a fork.
    pub(crate) stays: Vec<Stay>,
}

/// The anonymous and shared memory of a process at its end that is not locked, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stay {
    pub(crate) resident: u64,
    pub(crate) swapped: u64,
}

/// So many bytes may come in before the recorder pages out again.
const BEFORE_A_ROUND: u64 = 4 << 20;

impl Stay {
    /// What was resident at its end, in bytes, where that is by far more than what the pressure leaves: the
    /// recorder did not page it out, and its uses are not in the recording. What is locked stays in the
    /// replay as well, and each limit has room for what is `shared` since a fork. Of a sample, most is to
    /// stay.
    fn beyond(self, pressure: Pressure, shared: u64) -> Option<u64> {
        let one_in = u64::from(pressure.one_in.max(1));
        let resident = self.resident.saturating_sub(shared);
        let all = resident.saturating_add(self.swapped);
        // By chance a sample may have half as many blocks.
        let outside = if one_in == 1 { 0 } else { all - all / one_in / 2 };
        let kept = pressure.bytes / one_in;
        let most = outside.saturating_add(kept.saturating_add(kept / 2)).saturating_add(BEFORE_A_ROUND);
        (resident > most).then_some(resident)
    }
}

/// The most that one of these processes had resident at its end beyond what this pressure leaves, in bytes; 0
/// where none had ([`Stay::beyond`]).
pub(crate) fn stayed(pressure: Option<Pressure>, stays: &[Stay], shared: u64) -> u64 {
    let beyond = |pressure| stays.iter().filter_map(move |stay| stay.beyond(pressure, shared)).max();
    pressure.and_then(beyond).unwrap_or(0)
}

/// The processes that had more than that if nothing of it is shared. With something shared they are fewer.
pub(crate) fn stays(pressure: Option<Pressure>, processes: &[ProcessReport]) -> Vec<Stay> {
    let of = |process: &ProcessReport| {
        let linux = process.linux.as_ref()?;
        let resident = linux.rss_anon.saturating_add(linux.rss_shmem).saturating_sub(process.quire.locked);
        Some(Stay { resident, swapped: linux.vm_swap })
    };
    let is_beyond = |stay: &Stay| pressure.is_some_and(|pressure| stay.beyond(pressure, 0).is_some());
    processes.iter().filter_map(of).filter(is_beyond).collect()
}

impl LimitOutcome {
    /// Of a recording that was `made_under` this pressure.
    pub(crate) fn of(report: &ReplayReport, made_under: Option<Pressure>) -> Self {
        let does_not_fit = report.does_not_fit.as_ref().map(ToString::to_string);
        let ReplayReport { pressure, may_be_killed, zstd_of_lz4, .. } = *report;
        let ReplayReport { lost, unheard, events, .. } = *report;
        let missing = Missing { lost, unheard, events, stays: stays(made_under, &report.processes) };
        Self { does_not_fit, pressure, may_be_killed, zstd_of_lz4, missing }
    }

    /// The size of the pool when most was paged out, in bytes; none where the swap does not compress, or the
    /// ratio is not known.
    pub(crate) fn compressed(&self, swap: LimitSwap) -> Option<f64> {
        let lz4 = self.pressure.swap.compressed_bytes as f64;
        match swap {
            LimitSwap::Zram | LimitSwap::Zswap => Some(lz4),
            LimitSwap::ZramZstd => Some(lz4 * self.zstd_of_lz4?),
            LimitSwap::Disk => None,
        }
    }

    pub(crate) fn fits(&self) -> bool {
        self.does_not_fit.is_none()
    }
}

/// The result of one replay that follows what is used again.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeakFound {
    pub(crate) used: PeakUse,
    pub(crate) stays: Vec<Stay>,
}

impl PeakFound {
    /// Of a recording that was `made_under` this pressure.
    pub(crate) fn of(report: &ReplayReport, made_under: Option<Pressure>) -> Self {
        Self { used: report.peak_use.unwrap_or_default(), stays: stays(made_under, &report.processes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_mm::space::SpaceFigures;
    use quire_trace::event::LinuxFigures;

    #[test]
    fn what_pressure_leaves_is_no_more_than_it_says() {
        const MIB: u64 = 1 << 20;
        let process = |resident: u64, out: u64, locked: u64| {
            let (rss_anon, vm_swap) = (resident * MIB, out * MIB);
            let linux = LinuxFigures { rss_anon, vm_swap, ..LinuxFigures::default() };
            let quire = SpaceFigures { locked: locked * MIB, ..SpaceFigures::default() };
            ProcessReport { linux: Some(linux), quire, ..ProcessReport::default() }
        };
        let stayed = |pressure, processes: &[ProcessReport], shared| {
            stayed(pressure, &stays(pressure, processes), shared)
        };
        let of = |pressure, process: ProcessReport| stayed(Some(pressure), &[process], 0) / MIB;
        let whole = Pressure::of(16 * MIB);
        assert_eq!(of(whole, process(64, 0, 0)), 64);
        assert_eq!(of(whole, process(26, 38, 0)), 0, "what came in since the last round");
        assert_eq!(of(whole, process(48, 400, 0)), 48, "of more that went");
        assert_eq!((of(whole, process(64, 0, 48)), of(whole, process(96, 0, 48))), (0, 48), "it is locked");
        let sample = Pressure::of_sample(256 * MIB, 4, 1);
        assert_eq!((of(sample, process(800, 200, 0)), of(sample, process(1000, 0, 0))), (0, 1000));
        assert_eq!((stayed(None, &[process(64, 0, 0)], 0), stayed(Some(whole), &[], 0)), (0, 0));
        let shared = |bytes| stayed(Some(whole), &[process(64, 0, 0)], bytes * MIB) / MIB;
        assert_eq!((shared(40), shared(30)), (0, 34), "each limit has room for it");
    }
}
