//! Whether figures that were read can be those of a replay. They are computed with: sums and products of what
//! passes here fit their types.

use crate::error::AdviseError;
use crate::found::Found;
use crate::less::{LimitOutcome, PeakFound, Stay};
use crate::limits::Need;
use crate::outcome::Outcome;
use crate::point::{Amount, Asked, Less, MOST, Meant};
use crate::sweep::request::Request;
use quire_replay::{ForkFigures, LifeFigures, LifeSample, MappingLife, PressureFigures};
use quire_trace::format::TraceHeader;

/// No time in nanoseconds is: 36 years.
const MOST_NS: u64 = 1 << 60;

fn is_count(values: &[u64]) -> bool {
    values.iter().all(|value| *value <= MOST)
}

fn is_mean(values: &[f64]) -> bool {
    values.iter().all(|value| (0.0..=MOST as f64).contains(value))
}

fn is_sample(sample: &LifeSample) -> bool {
    let LifeSample { time_ns, event, anonymous, resident, page_tables, mapped, largest, huge, large, .. } =
        *sample;
    let LifeSample { shared, unmapped, kernel, locked_files, .. } = *sample;
    let counts = [event, anonymous, resident, page_tables, mapped, largest, huge, large];
    time_ns <= MOST_NS && is_count(&counts) && is_count(&[shared, unmapped, kernel, locked_files])
}

fn is_life(life: &LifeFigures) -> bool {
    let LifeFigures { at_peak, at_mapped_peak, at_charge_peak, at_end, samples, folios, processes, .. } =
        life;
    let ForkFigures { forks, entries, huge_entries, tables, copies, reuses, splits } = life.forks;
    let counts = [
        life.peak_pageable,
        life.peak_largest,
        life.peak_resident,
        life.peak_page_tables,
        life.faults,
        life.collapses,
        life.khugepaged_collapses,
        life.collapse_fallbacks,
    ];
    [at_peak, at_mapped_peak, at_charge_peak, at_end].into_iter().chain(samples).all(is_sample)
        && samples.is_sorted_by_key(|sample| sample.event)
        && is_count(&counts)
        && is_count(&[forks, entries, huge_entries, tables, copies, reuses, splits])
        && is_mean(&[life.mean_anonymous, life.mean_resident, life.mean_page_tables])
        && folios.len() <= quire_arch::Order::COUNT
        && folios.iter().all(|folio| is_count(&[folio.faults, folio.fallbacks, folio.splits]))
        && processes.iter().all(|process| is_count(&[process.peak_anonymous, process.peak_page_tables]))
}

fn is_outcome(outcome: &Outcome) -> bool {
    let Outcome { life, processes, differences, lost, unheard, processor_ns, recorder_ns, gaps, .. } =
        outcome;
    let Outcome { unexplained, unrecorded_shared, unrecorded_pages, .. } = outcome;
    let counts = [*differences, *lost, *unheard, *unrecorded_shared, *unrecorded_pages];
    let is_process = |process: &crate::outcome::ProcessRow| {
        is_count(&[process.peak_anonymous, process.peak_page_tables])
            && process.near.iter().all(|near| near.used > 0 && near.most > 0)
    };
    is_life(life)
        && processes.iter().all(is_process)
        && is_count(&counts)
        && is_count(unexplained)
        && gaps.values().all(|count| is_count(&[*count]))
        && *processor_ns <= MOST_NS
        && *recorder_ns <= MOST_NS
}

fn is_stays(stays: &[Stay]) -> bool {
    stays.iter().all(|stay| is_count(&[stay.resident, stay.swapped]))
}

fn is_less(found: &LimitOutcome) -> bool {
    let LimitOutcome { pressure, missing, zstd_of_lz4, .. } = found;
    let PressureFigures { minor_faults, major_faults, pages_out, pages_in, zeros_out, zeros_in, .. } =
        *pressure;
    let (refaults, swap) = (pressure.refaults, pressure.swap);
    // Pages are multiplied by their size.
    let pages = [pages_out, pages_in, swap.used, swap.stored];
    let counts =
        [minor_faults, major_faults, refaults, swap.compressed_bytes, swap.ram_bytes, swap.cache_bytes];
    is_count(&counts)
        && pages.iter().all(|pages| *pages <= MOST >> 12)
        && zeros_out <= pages_out
        && zeros_in <= pages_in
        && is_count(&[missing.lost, missing.unheard, missing.events])
        && is_stays(&missing.stays)
        && zstd_of_lz4.is_none_or(|ratio| is_mean(&[ratio]))
}

/// They are added up.
fn are_mappings(mappings: &[MappingLife]) -> bool {
    let sum =
        |of: fn(&MappingLife) -> u64| mappings.iter().map(|mapping| u128::from(of(mapping))).sum::<u128>();
    mappings.iter().all(|mapping| mapping.start <= mapping.end)
        && sum(|mapping| mapping.anonymous) <= u128::from(MOST)
        && sum(|mapping| mapping.lazily_free) <= u128::from(MOST)
}

/// Whether a replay can have found this.
pub(super) fn is_possible(found: &Found) -> bool {
    match found {
        Found::Life(Ok(outcome)) => is_outcome(outcome),
        Found::Life(Err(_)) => true,
        Found::PeakUse(PeakFound { used, stays }) => {
            is_count(&[used.peak, used.used, used.shared]) && is_stays(stays)
        }
        Found::Mappings(mappings) => are_mappings(mappings),
        Found::Less(found) => is_less(found),
    }
}

/// Whether it can have been found for this request.
pub(super) fn is_of(found: &Found, request: &Request) -> bool {
    matches!(
        (found, &request.asked),
        (Found::Life(_), Asked::Life)
            | (Found::PeakUse(_), Asked::PeakUse)
            | (Found::Mappings(_), Asked::Mappings(_))
            | (Found::Less(_), Asked::Less(_))
    )
}

/// Whether a sweep asks for such replays.
///
/// # Errors
///
/// [`AdviseError::NotAsked`].
pub fn check(request: &Request) -> Result<(), AdviseError> {
    if is_request(request) { Ok(()) } else { Err(AdviseError::NotAsked(request.setting.clone())) }
}

/// Whether it does.
pub(super) fn is_request(request: &Request) -> bool {
    let kernel = request.kernel.unwrap_or_default();
    is_count(&[kernel.thread, kernel.process, kernel.mapping])
        && match (&request.asked, request.need) {
            (Asked::Less(less), Some(need)) => is_asked(less, need),
            (Asked::Life | Asked::PeakUse, None) => request.phase.is_none() && request.serves.is_empty(),
            (Asked::Mappings(_), None) => request.serves.is_empty(),
            _ => false,
        }
}

/// Whether a sweep asks for so much memory, for a program that needs this.
fn is_asked(less: &Less, need: Need) -> bool {
    let is_meant = match (less.meant, less.amount) {
        (Meant::Percent(percent), Amount::Limit(_)) => (1..=100).contains(&percent),
        // A part of it may be for what is shared.
        (Meant::Amount(meant @ Amount::Limit(_)), Amount::Limit(bytes)) => {
            meant.possible().contains(&meant.bytes()) && bytes <= meant.bytes()
        }
        (Meant::Amount(meant), amount) => meant == amount && meant.possible().contains(&meant.bytes()),
        (Meant::Percent(_), Amount::Ram(_)) => false,
    };
    is_meant
        && less.beside.is_none()
        && is_count(&[less.amount.bytes(), less.peak.unwrap_or(0), less.swap_bytes])
        && is_count(&[need.anonymous, need.stays])
        && less.swap.is_none_or(|swap| swap == swap.replayed_as())
}

/// Whether predictions can be made from a recording with this header.
pub(super) fn is_header(header: &TraceHeader) -> Result<(), String> {
    header.supports_thp_predictions()?;
    let sizes = [header.pressure.map(|pressure| pressure.bytes), header.shown_limit];
    let is_possible = sizes.into_iter().flatten().all(|bytes| is_count(&[bytes]));
    is_possible.then_some(()).ok_or_else(|| "its header has sizes beyond all memory".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_mappings_fit_their_types() {
        let mapping = |anonymous| MappingLife {
            process: 0,
            start: 0,
            end: 4096,
            name: String::new(),
            site: String::new(),
            anonymous,
            lazily_free: 0,
        };
        assert!(are_mappings(&[mapping(MOST / 2), mapping(MOST / 2)]));
        assert!(!are_mappings(&[mapping(MOST / 2), mapping(MOST / 2), mapping(1)]));
        assert!(!are_mappings(&[MappingLife { start: 8192, ..mapping(1) }]));
    }

    #[test]
    fn more_pages_of_zeros_than_pages_are_impossible() {
        let of = |pages_in, zeros_in| {
            let pressure = PressureFigures { pages_in, zeros_in, ..PressureFigures::default() };
            is_less(&LimitOutcome { pressure, ..LimitOutcome::default() })
        };
        assert!(of(7, 7) && !of(7, 8) && !of(MOST, 0));
    }
}
