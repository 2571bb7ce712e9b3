//! Resident memory by address and time, and which of it was ever touched.
//!
//! Touched memory is what a replay without huge pages and without a limit has resident at the same moment:
//! the recording shows each touched page of 4 KiB. So there are two replays: the one in question, and that
//! one.

use crate::setting::{NEVER, grid};
use quire_arch::PAGE_SIZE;
use quire_replay::{Audits, HeatMap, Replay, ReplayError, ReplayOptions, ReplayReport};
use std::collections::{BTreeMap, BTreeSet};

/// Columns of recorded time.
pub const HEAT_COLUMNS: usize = 160;
/// The most chunks of addresses; they double in size until there are no more than that.
const MOST_ROWS: usize = 512;
/// The most ranges of addresses, those with most chunks.
const MOST_RUNS: usize = 24;

/// The memory of one process by address and time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Heat {
    /// The program that the process ran last.
    pub program: String,
    /// Its id when it was recorded.
    pub pid: u32,
    /// Processes that are left out: this one had most memory.
    pub others: usize,
    /// The recorded time, in seconds.
    pub seconds: f64,
    /// Bytes of a row of addresses.
    pub chunk: u64,
    /// Ranges of addresses, lowest first.
    pub runs: Vec<HeatRun>,
    /// Ranges that are left out, since there are many, and the peak of their resident memory together, in
    /// bytes.
    pub left_out: (usize, u64),
}

/// A range of addresses that held memory at some time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct HeatRun {
    /// The mapping's name, as far as it has one.
    pub name: String,
    /// Its first address.
    pub start: u64,
    /// The address after its last.
    pub end: u64,
    /// Rows of [`Heat::chunk`] bytes, lowest first, with a cell a column of time.
    pub rows: Vec<Vec<HeatBytes>>,
    /// Its contents when the process had most memory.
    pub at_peak: HeatBytes,
}

/// The memory of a part of the addresses, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeatBytes {
    /// In memory, and touched in the time of the column.
    pub touched_now: u64,
    /// In memory, and touched before.
    pub touched_before: u64,
    /// In memory, and never touched.
    pub never_touched: u64,
    /// Paged out.
    pub paged_out: u64,
}

impl HeatBytes {
    /// What is in memory.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.touched_now + self.touched_before + self.never_touched
    }

    fn add(&mut self, other: Self) {
        self.touched_now += other.touched_now;
        self.touched_before += other.touched_before;
        self.never_touched += other.never_touched;
        self.paged_out += other.paged_out;
    }
}

/// Which pages are touched, of the recording that `replay` is of: a replay without huge pages.
///
/// # Errors
///
/// [`ReplayError`].
pub fn touched_pages(replay: &Replay, salvage: bool) -> Result<HeatMap, ReplayError> {
    let settings = grid(&replay.header()?);
    let never = settings.into_iter().find(|setting| setting.name == NEVER).map(|setting| setting.huge);
    let options = ReplayOptions {
        huge: never.unwrap_or_default(),
        salvage,
        audits: Audits::Never,
        heat: Some(HEAT_COLUMNS),
        ..ReplayOptions::default()
    };
    Ok(replay.with(options).run(&mut |_, _| {})?.heat.unwrap_or_default())
}

impl Heat {
    /// Of the process with most memory in a replay that followed addresses ([`ReplayOptions::heat`] of
    /// [`HEAT_COLUMNS`]). `touched` is [`touched_pages`] of the same recording. None if nothing was followed.
    #[must_use]
    pub fn of(report: &ReplayReport, touched: &HeatMap) -> Option<Self> {
        let found = report.heat.as_ref()?;
        let (process, peak) = largest(found)?;
        let (mut found, mut touched) = (only(found, process), only(touched, process));
        while found.chunk < touched.chunk || chunks(&found).len() > MOST_ROWS {
            found = found.with_chunk_doubled();
        }
        while touched.chunk < found.chunk {
            touched = touched.with_chunk_doubled();
        }
        let mut runs = runs(&found);
        let all = runs.len();
        runs.sort_by_key(|&(from, to)| std::cmp::Reverse(to - from));
        let small = runs.split_off(runs.len().min(MOST_RUNS));
        runs.sort_unstable();
        let run = |&(from, to): &(u64, u64)| run(&found, &touched, process, (from, to), peak);
        let left_out = small.iter().map(|range| run(range).at_peak.resident()).sum();
        let (pid, program) = report
            .processes
            .get(process)
            .map_or((0, String::new()), |process| (process.pid, process.program.to_string()));
        Some(Self {
            program,
            pid,
            others: report.processes.len().saturating_sub(1),
            seconds: found.time_ns as f64 / 1e9,
            chunk: found.chunk,
            left_out: (all - runs.len(), left_out),
            runs: runs.iter().map(run).collect(),
        })
    }

    /// Never-touched memory when the process had most memory, by the name of the mapping; most first.
    #[must_use]
    pub fn waste(&self) -> Vec<(String, u64)> {
        let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
        for run in self.runs.iter().filter(|run| run.at_peak.never_touched > 0) {
            *by_name.entry(&run.name).or_default() += run.at_peak.never_touched;
        }
        let mut waste: Vec<(String, u64)> =
            by_name.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
        waste.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        waste
    }
}

/// The process that has most anonymous memory at some time, and the column in which it has that.
fn largest(map: &HeatMap) -> Option<(usize, usize)> {
    let mut most: Option<(u64, usize, usize)> = None;
    for (column, cells) in map.columns.iter().enumerate() {
        let mut sums: BTreeMap<usize, u64> = BTreeMap::new();
        for (&(process, _), cell) in cells {
            *sums.entry(process).or_default() += cell.resident + cell.paged_out;
        }
        for (process, pages) in sums {
            if most.is_none_or(|(known, ..)| pages > known) {
                most = Some((pages, process, column));
            }
        }
    }
    most.filter(|&(pages, ..)| pages > 0).map(|(_, process, column)| (process, column))
}

/// Of one process.
fn only(map: &HeatMap, process: usize) -> HeatMap {
    let columns = map.columns.iter().map(|cells| {
        cells.range((process, 0)..=(process, u64::MAX)).map(|(&place, &cell)| (place, cell)).collect()
    });
    HeatMap { columns: columns.collect(), mappings: map.mappings.clone(), ..*map }
}

/// The chunks that held something at some time.
fn chunks(map: &HeatMap) -> BTreeSet<u64> {
    let cells = map.columns.iter().flatten();
    cells.filter(|(_, cell)| cell.resident + cell.paged_out > 0).map(|(&(_, number), _)| number).collect()
}

/// Chunks without a hole between them, from the first to the one after the last.
fn runs(map: &HeatMap) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in chunks(map) {
        match runs.last_mut() {
            Some((_, end)) if *end == number => *end += 1,
            _ => runs.push((number, number + 1)),
        }
    }
    runs
}

fn run(found: &HeatMap, touched: &HeatMap, process: usize, (from, to): (u64, u64), peak: usize) -> HeatRun {
    let cell = |number: u64, column: usize| {
        let cell = found.columns[column].get(&(process, number)).copied().unwrap_or_default();
        let known = touched.columns.get(column).and_then(|cells| cells.get(&(process, number)));
        let was_touched = cell.resident.min(known.map_or(0, |cell| cell.resident));
        let now = was_touched.min(cell.touches);
        HeatBytes {
            touched_now: now * PAGE_SIZE,
            touched_before: (was_touched - now) * PAGE_SIZE,
            never_touched: (cell.resident - was_touched) * PAGE_SIZE,
            paged_out: cell.paged_out * PAGE_SIZE,
        }
    };
    let columns = found.columns.len();
    let rows: Vec<Vec<HeatBytes>> =
        (from..to).map(|number| (0..columns).map(|column| cell(number, column)).collect()).collect();
    let mut at_peak = HeatBytes::default();
    rows.iter().for_each(|row| at_peak.add(row[peak]));
    let (start, end) = (from * found.chunk, to * found.chunk);
    HeatRun { name: name(found, process, start, end), start, end, rows, at_peak }
}

/// The name of the mapping that covers most of a range.
fn name(map: &HeatMap, process: usize, start: u64, end: u64) -> String {
    let mine = map.mappings.range((process, 0)..=(process, end));
    let overlap = |from: u64, to: u64| to.min(end).saturating_sub(from.max(start));
    let most = mine
        .map(|(&(_, from), (to, name))| (overlap(from, *to), name))
        .filter(|&(bytes, _)| bytes > 0)
        .max_by_key(|&(bytes, _)| bytes);
    match most {
        Some((_, name)) if !name.is_empty() => name.clone(),
        _ => "anonymous".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_replay::HeatCell;

    fn map(chunk: u64, cells: &[(u64, u64, u64)]) -> HeatMap {
        let cell = |&(number, resident, touches)| {
            ((0, number), HeatCell { resident, touches, ..HeatCell::default() })
        };
        let mappings = [((0, 0), (1 << 20, "[heap]".to_owned()))].into();
        HeatMap { chunk, time_ns: 1, columns: vec![cells.iter().map(cell).collect()], mappings }
    }

    #[test]
    fn what_another_replay_lacks_was_never_touched() {
        let (found, touched) = (map(1 << 14, &[(0, 4, 1), (1, 4, 0)]), map(1 << 12, &[(0, 1, 1), (3, 1, 9)]));
        let mut touched = touched;
        while touched.chunk < found.chunk {
            touched = touched.with_chunk_doubled();
        }
        let run = run(&found, &touched, 0, (0, 2), 0);
        assert_eq!(run.name, "[heap]");
        assert_eq!(
            run.at_peak,
            HeatBytes { touched_now: 4096, touched_before: 4096, never_touched: 6 * 4096, paged_out: 0 }
        );
    }

    #[test]
    fn runs_end_at_holes() {
        assert_eq!(runs(&map(4096, &[(1, 1, 0), (2, 1, 0), (4, 0, 3), (9, 1, 1)])), [(1, 3), (9, 10)]);
    }
}
