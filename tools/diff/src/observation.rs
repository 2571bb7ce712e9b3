//! The observable state of a process after an operation, on either side.

use quire_mm::space::{PageState, VmFlags};

/// A mapping, clipped to what does not belong to the oracle itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its first byte.
    pub start: u64,
    /// The byte behind its last.
    pub end: u64,
    /// Access and `MAYSHARE` only.
    pub flags: VmFlags,
    /// Offset into the file or the shared memory in bytes; 0 for what shows neither.
    pub offset: u64,
    /// Whether it shows the program's file.
    pub file: bool,
    /// Which memfd of the program it shows, from 1 in the order in which they were made, or 0.
    pub memfd: u32,
}

impl Region {
    /// Whether it shows shared memory that is not the program's file.
    pub(crate) fn is_shared_memory(&self) -> bool {
        !self.file && self.is_cached()
    }

    /// Whether its pages are no process's own, but for copies.
    pub(crate) fn is_cached(&self) -> bool {
        self.file || self.memfd != 0 || self.flags.contains(VmFlags::MAYSHARE)
    }
}

/// Pages in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pages {
    /// Address of the first.
    pub start: u64,
    /// The byte behind the last.
    pub end: u64,
    /// What they are.
    pub state: PageState,
    /// Whether they are anonymous and PMD entries map them.
    pub large: bool,
}

/// A mapping as `/proc/PID/smaps` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Detail {
    /// Its first byte.
    pub start: u64,
    /// The byte behind its last.
    pub end: u64,
    /// All flags that Linux shows.
    pub flags: VmFlags,
    /// `Rss` in KiB.
    pub resident: u64,
    /// `Anonymous` in KiB.
    pub anonymous: u64,
    /// `Swap` in KiB.
    pub swapped: u64,
    /// `AnonHugePages` in KiB.
    pub large: u64,
    /// `THPeligible`.
    pub eligible: bool,
}

/// Lines of `/proc/PID/status`, in KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// `VmSize`.
    pub size: u64,
    /// `VmPeak`.
    pub peak: u64,
    /// `VmLck`.
    pub locked: u64,
    /// `VmData`.
    pub data: u64,
    /// `VmStk`.
    pub stack: u64,
    /// `VmPTE`.
    pub tables: u64,
    /// `VmPin`.
    pub pinned: u64,
    /// `VmSwap`.
    pub swapped: u64,
}

/// How many descriptors of memfds a process has at most.
pub(crate) const MOST_MEMFDS: usize = 4;

/// What is behind a descriptor of a memfd.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Memfd {
    /// Its seals, as a call returns them.
    pub seals: i64,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes that it has allocated.
    pub allocated: u64,
    /// Where it has data, in bytes, end exclusive.
    pub data: Vec<(u64, u64)>,
    /// Offset and checksum of each page of these, up to a number of them, if it may be read.
    pub sums: Vec<(u64, u64)>,
}

/// A segment of SysV shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its number.
    pub id: i64,
    /// Its key.
    pub key: i64,
    /// Its permissions and state.
    pub mode: i64,
    /// The process of the program that made it.
    pub creator: i64,
    /// Its size in bytes.
    pub size: i64,
    /// How many mappings it has.
    pub attachments: i64,
    /// Whether it was ever attached.
    pub was_attached: bool,
}

/// The parts that are not observed after every operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// `smaps`: up to this address.
    pub details_until: u64,
    /// `status`.
    pub figures: bool,
    /// Checksums of the pages.
    pub sums: bool,
}

/// The observable state of one process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Observation {
    /// All mappings, lowest first.
    pub regions: Vec<Region>,
    /// All pages in memory, lowest first.
    pub pages: Vec<Pages>,
    /// Where pages were paged out, lowest first, end exclusive.
    pub swapped: Vec<(u64, u64)>,
    /// Mappings with all flags, if wanted.
    pub details: Vec<Detail>,
    /// If wanted.
    pub figures: Option<Figures>,
    /// Address and checksum of each readable page that is in memory and no page of zeros, if wanted.
    pub sums: Vec<(u64, u64)>,
    /// Size of the file, if sums are wanted.
    pub file_size: u64,
    /// Checksums of its pages up to a number of them, with zeros past its end, if wanted.
    pub file_sums: Vec<u64>,
    /// What the descriptors of memfds are, if sums are wanted.
    pub memfds: [Option<Memfd>; MOST_MEMFDS],
    /// All segments of the program's name space, if sums are wanted.
    pub segments: Vec<Segment>,
    /// The vector of `mincore`, one entry a page.
    pub residency: Vec<bool>,
}

/// Bytes that a PMD entry maps.
pub const LARGE: u64 = 2 << 20;

impl Observation {
    /// The runs of pages that are a process's own, or the page of zeros.
    pub(crate) fn own_pages(&self) -> impl Iterator<Item = Pages> {
        self.pages.iter().copied().filter(|run| run.state != PageState::File)
    }

    /// The pages of the file that are mapped.
    pub(crate) fn file_pages(&self) -> Vec<(u64, u64)> {
        self.mapped_pages(|region| region.file)
    }

    /// The pages of shared memory that are mapped.
    pub(crate) fn shared_pages(&self) -> Vec<(u64, u64)> {
        self.mapped_pages(Region::is_shared_memory)
    }

    /// Both.
    pub(crate) fn cached_pages(&self) -> Vec<(u64, u64)> {
        [self.file_pages(), self.shared_pages()].concat()
    }

    /// Cached pages of certain mappings, one run where they continue each other.
    fn mapped_pages(&self, of: impl Fn(&Region) -> bool) -> Vec<(u64, u64)> {
        let mut regions = self.regions.iter().filter(|region| of(region)).peekable();
        let mut pages: Vec<(u64, u64)> = Vec::new();
        for run in self.pages.iter().filter(|run| run.state == PageState::File) {
            while regions.next_if(|region| region.end <= run.start).is_some() {}
            let mut rest = regions.clone();
            while let Some(region) = rest.next_if(|region| region.start < run.end) {
                let (start, end) = (region.start.max(run.start), region.end.min(run.end));
                match pages.last_mut() {
                    Some(last) if last.1 == start => last.1 = end,
                    _ => pages.push((start, end)),
                }
            }
        }
        pages
    }

    /// Whether a PMD entry maps what is at `addr`, a folio or zeros.
    pub(crate) fn maps_large(&self, addr: u64) -> bool {
        self.pages.iter().any(|run| run.large && (run.start..run.end).contains(&addr))
    }

    /// The blocks that PMD entries map.
    pub(crate) fn large_blocks(&self) -> impl Iterator<Item = u64> {
        self.blocks(|run| run.large)
    }

    /// The aligned blocks of [`LARGE`] bytes that lie in one of certain runs.
    fn blocks(&self, of: impl Fn(&Pages) -> bool) -> impl Iterator<Item = u64> {
        self.pages.iter().filter(move |run| of(run)).flat_map(|run| {
            let blocks = run.start.next_multiple_of(LARGE)..run.end;
            blocks.step_by(LARGE as usize).filter(|block| block + LARGE <= run.end)
        })
    }

    /// Adds pages, in one run with those before where they continue them.
    pub(crate) fn add_pages(&mut self, pages: Pages) {
        match self.pages.last_mut() {
            Some(last)
                if last.end == pages.start && (last.state, last.large) == (pages.state, pages.large) =>
            {
                last.end = pages.end;
            }
            _ => self.pages.push(pages),
        }
    }

    /// Adds pages that were paged out.
    pub(crate) fn add_swapped(&mut self, start: u64, end: u64) {
        match self.swapped.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => self.swapped.push((start, end)),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.regions.clear();
        self.pages.clear();
        self.swapped.clear();
        self.details.clear();
        self.sums.clear();
        self.file_sums.clear();
        self.file_size = 0;
        self.memfds = [const { None }; MOST_MEMFDS];
        self.segments.clear();
        self.residency.clear();
        self.figures = None;
    }
}

/// The first place for `len` bytes in `range` between these regions, which are sorted.
pub fn first_fit(regions: &[Region], range: core::ops::Range<u64>, len: u64) -> Option<u64> {
    let mut at = range.start;
    for region in regions.iter().filter(|region| region.end > range.start && region.start < range.end) {
        if region.start.saturating_sub(at) >= len {
            break;
        }
        at = region.end;
    }
    (at.checked_add(len)? <= range.end).then_some(at)
}
