//! Anonymous memory by address and recorded time: when it is resident, paged out, and touched.
//!
//! The recorded time is divided into columns, addresses into chunks. At the end of each column the page
//! tables of all programs are walked. Chunks double in size whenever a column has too many, so that the map
//! stays small for programs of any size.

use super::files::FileIds;
use super::mappings;
use crate::space::HostSpace;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE};
use quire_mm::space::AnonymousPlace;
use std::collections::{BTreeMap, HashMap};

/// A chunk of addresses of one process in one column, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeatCell {
    /// Anonymous pages that are resident at the end of the column.
    pub resident: u64,
    /// Anonymous pages that are paged out then.
    pub paged_out: u64,
    /// Touches in the column: page faults and other recorded uses, of any page.
    pub touches: u64,
}

impl HeatCell {
    fn add(&mut self, other: Self) {
        self.resident += other.resident;
        self.paged_out += other.paged_out;
        self.touches += other.touches;
    }
}

/// A chunk of a process: its place in [`ReplayReport::processes`](super::ReplayReport::processes), and the
/// number of the chunk, which is its address divided by [`HeatMap::chunk`].
pub type HeatPlace = (usize, u64);

/// Anonymous memory by address and time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeatMap {
    /// Bytes of a chunk, a power of two.
    pub chunk: u64,
    /// The recorded time that all columns divide evenly, in nanoseconds.
    pub time_ns: u64,
    /// The chunks that hold something or are touched in each column.
    pub columns: Vec<BTreeMap<HeatPlace, HeatCell>>,
    /// Mappings that had anonymous pages at the end of some column, by process and first address: the address
    /// after the last, and the name ([`MappingLife::name`](super::MappingLife::name)). The last one at an
    /// address counts.
    pub mappings: BTreeMap<(usize, u64), (u64, String)>,
}

/// Of chunks of the largest size there are at most so many in a column.
const MOST_CHUNKS: usize = 4096;
/// No chunk is larger: one holds all addresses.
const LARGEST_CHUNK: u64 = 1 << 47;
/// Mappings that are remembered.
const MOST_MAPPINGS: usize = 1 << 14;

/// Watches a replay.
#[derive(Debug)]
pub(super) struct Heat {
    map: HeatMap,
    all: usize,
    /// Touches since the last column.
    touches: HashMap<HeatPlace, u64>,
}

impl Heat {
    /// So many columns for a recording that takes `time_ns`.
    pub(super) fn new(columns: usize, time_ns: u64) -> Self {
        let map = HeatMap { chunk: PAGE_SIZE, time_ns: time_ns.max(1), ..HeatMap::default() };
        Self { map, all: columns.max(1), touches: HashMap::new() }
    }

    /// Whether a column ends before an event at `time_ns`.
    pub(super) fn is_due(&self, time_ns: u64) -> bool {
        self.map.columns.len() < self.all && time_ns >= self.end_of(self.map.columns.len())
    }

    fn end_of(&self, column: usize) -> u64 {
        (u128::from(self.map.time_ns) * (column as u128 + 1) / self.all as u128) as u64
    }

    /// A process touches a page.
    pub(super) fn touch(&mut self, process: usize, addr: u64) {
        *self.touches.entry((process, addr / self.map.chunk)).or_default() += 1;
        // Their column would have too many.
        while self.touches.len() > MOST_CHUNKS && self.map.chunk < LARGEST_CHUNK {
            self.double();
        }
    }

    fn double(&mut self) {
        self.map = std::mem::take(&mut self.map).with_chunk_doubled();
        for ((process, number), touches) in std::mem::take(&mut self.touches) {
            *self.touches.entry((process, number / 2)).or_default() += touches;
        }
    }

    /// Ends the columns that end before an event at `time_ns`, or all if there is none. `spaces` are those
    /// that live, each with its process.
    pub(super) fn end_columns<'m>(
        &mut self,
        time_ns: Option<u64>,
        spaces: impl Iterator<Item = (usize, &'m HostSpace<'m>)>,
        files: &FileIds<'_>,
    ) {
        if self.map.columns.len() == self.all {
            // The last column ended before the last event.
            for (place, touches) in std::mem::take(&mut self.touches) {
                self.map.columns[self.all - 1].entry(place).or_default().touches += touches;
            }
            return;
        }
        let mut column: BTreeMap<HeatPlace, HeatCell> = BTreeMap::new();
        for (process, space) in spaces {
            self.add(process, space, &mut column);
            self.name(process, space, files);
        }
        let mut touched = column.clone();
        for (place, touches) in std::mem::take(&mut self.touches) {
            touched.entry(place).or_default().touches += touches;
        }
        // All touches are in the first of them.
        self.map.columns.push(touched);
        while self.map.columns.len() < self.all && time_ns.is_none_or(|time_ns| self.is_due(time_ns)) {
            self.map.columns.push(column.clone());
        }
        while self.map.chunk < LARGEST_CHUNK
            && self.map.columns.iter().any(|column| column.len() > MOST_CHUNKS)
        {
            self.double();
        }
    }

    fn add(&self, process: usize, space: &HostSpace<'_>, column: &mut BTreeMap<HeatPlace, HeatCell>) {
        let chunk = self.map.chunk;
        let (mut last, mut cell) = (None, HeatCell::default());
        space.mappings().for_each_anonymous(|pages, place| {
            let mut at = pages.start().0;
            while at < pages.end().0 {
                let number = at / chunk;
                let end = pages.end().0.min((number + 1) * chunk);
                if last != Some(number) {
                    if let Some(last) = last {
                        column.entry((process, last)).or_default().add(cell);
                    }
                    (last, cell) = (Some(number), HeatCell::default());
                }
                let count = (end - at) >> PAGE_SHIFT;
                match place {
                    AnonymousPlace::Memory => cell.resident += count,
                    AnonymousPlace::Swap => cell.paged_out += count,
                }
                at = end;
            }
        });
        if let Some(last) = last {
            column.entry((process, last)).or_default().add(cell);
        }
    }

    fn name(&mut self, process: usize, space: &HostSpace<'_>, files: &FileIds<'_>) {
        let (known, heap) = (&mut self.map.mappings, mappings::heap(space));
        space.mappings().for_each(|mapping| {
            let key = (process, mapping.range.start().0);
            if known.len() < MOST_MAPPINGS || known.contains_key(&key) {
                known.insert(key, (mapping.range.end().0, mappings::name(heap, files, &mapping)));
            }
        });
    }

    /// The map at the end.
    pub(super) fn finish(self) -> HeatMap {
        self.map
    }
}

impl HeatMap {
    /// This map with chunks of twice the size.
    #[must_use]
    pub fn with_chunk_doubled(self) -> Self {
        let columns = self.columns.into_iter().map(|column| {
            let mut merged: BTreeMap<HeatPlace, HeatCell> = BTreeMap::new();
            for ((process, number), cell) in column {
                merged.entry((process, number / 2)).or_default().add(cell);
            }
            merged
        });
        Self { chunk: self.chunk * 2, columns: columns.collect(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touches_far_apart_and_processes_without_number_end_in_large_chunks() {
        let mut heat = Heat::new(2, 100);
        for page in 0..1 << 15 {
            heat.touch(0, page << 20);
            assert!(heat.touches.len() <= MOST_CHUNKS);
        }
        assert_eq!(heat.touches.values().sum::<u64>(), 1 << 15);
        heat.end_columns(Some(60), std::iter::empty(), &FileIds::default());
        for process in 0..2 * MOST_CHUNKS {
            heat.touch(process, 1 << 40);
        }
        heat.end_columns(None, std::iter::empty(), &FileIds::default());
        let map = heat.finish();
        assert_eq!((map.chunk, map.columns.len(), map.columns[1].len()), (LARGEST_CHUNK, 2, 2 * MOST_CHUNKS));
    }
}
