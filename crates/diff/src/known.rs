//! Differences that stay, by name. Each is a line of docs/differences.md.

use crate::linux::FILE_BYTES;
use crate::observation::{Observation, Outcome, Region};
use crate::program::Call;
use quire_mm::VmFlags;
use std::collections::BTreeMap;

/// A difference from Linux that is deliberate or waits for a part that is not built.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum KnownDifference {
    /// `mremap` that grows, shrinks, doubles or leaves behind shared memory: each mapping has pages of its own here.
    SharedRemap,
    /// Shared memory that was untouched at a fork is not shared with the child.
    SharedFork,
    /// What is written through one mapping of a file is not seen through another.
    FileContents,
    /// Which pages of files and shared memory are in memory: there is no page cache.
    FilePages,
    /// `MADV_PAGEOUT` drops what was given free or can be read again; here it drops nothing.
    PageOut,
    /// A processor with protection keys makes memory that may only be executed unreadable.
    ExecuteOnly,
    /// Linux counts locked pages of a mapping of 8 TiB and more in an `int`, which overflows.
    LockedOverflow,
    /// Linux goes on counting locked memory that `MREMAP_DONTUNMAP` left behind unlocked.
    LockedDontUnmap,
    /// Linux leaves the mappings split that a `MAP_FIXED` was to replace in part, when it fails after that.
    FailedSplit,
    /// Sizes of files are not known here, so nothing ends in SIGBUS.
    FileSize,
    /// A call, or a form of one, that is not built.
    NotBuilt,
    /// `MAP_32BIT` begins to look for room at a random place.
    Below2G,
    /// Linux frees a table that one `MADV_DONTNEED` covers as a whole.
    PageTables,
}

impl KnownDifference {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::SharedRemap,
        Self::SharedFork,
        Self::FileContents,
        Self::FilePages,
        Self::PageOut,
        Self::ExecuteOnly,
        Self::LockedOverflow,
        Self::LockedDontUnmap,
        Self::FailedSplit,
        Self::FileSize,
        Self::NotBuilt,
        Self::Below2G,
        Self::PageTables,
    ];

    /// Its name in docs/differences.md.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SharedRemap => "shared-remap",
            Self::SharedFork => "shared-fork",
            Self::FileContents => "file-contents",
            Self::FilePages => "file-pages",
            Self::PageOut => "pageout",
            Self::ExecuteOnly => "execute-only",
            Self::LockedOverflow => "locked-overflow",
            Self::LockedDontUnmap => "locked-dontunmap",
            Self::FailedSplit => "failed-split",
            Self::FileSize => "file-size",
            Self::NotBuilt => "not-built",
            Self::Below2G => "below-2g",
            Self::PageTables => "page-tables",
        }
    }
}

/// How often known differences were met.
pub type KnownCounts = BTreeMap<KnownDifference, u64>;

/// What of a program's past bears on what may differ.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    /// A process was forked.
    forked: bool,
    /// A file was written through a shared mapping.
    file_written: bool,
    /// Pages were given free and may still be there.
    freed: bool,
    counts: KnownCounts,
}

/// Whether a mapping's pages are no process's own.
fn is_cached(region: &Region) -> bool {
    region.file || region.flags.contains(VmFlags::MAYSHARE)
}

/// The regions with those made one that continue each other.
fn joined(regions: &[Region]) -> Vec<Region> {
    let mut all: Vec<Region> = Vec::new();
    for &region in regions {
        match all.last_mut() {
            Some(last)
                if last.end == region.start
                    && (last.flags, last.file) == (region.flags, region.file)
                    && (!last.file || last.offset + (last.end - last.start) == region.offset) =>
            {
                last.end = region.end;
            }
            _ => all.push(region),
        }
    }
    all
}

fn overlapping(regions: &[Region], addr: u64, len: u64) -> impl Iterator<Item = &Region> {
    let end = addr.saturating_add(len.max(1));
    regions.iter().filter(move |region| region.start < end && addr < region.end)
}

impl Past {
    /// Whether an operation is known to end differently, with Quire's mappings as they are before it. The program
    /// cannot go on after it: the sides are no longer alike.
    pub(crate) fn parts_ways(
        &mut self,
        call: Call,
        args: [u64; 6],
        before: &[Region],
    ) -> Option<KnownDifference> {
        const PAGEOUT: u64 = 21;
        const DONTUNMAP: u64 = 4;
        const BELOW_2G: u64 = 0x40;
        const FIXED: u64 = 0x10_0010;
        let [addr, len, third, fourth, ..] = args;
        let shared = |region: &Region| region.flags.contains(VmFlags::MAYSHARE);
        let known = match call {
            Call::Mmap if fourth & BELOW_2G != 0 && fourth & FIXED == 0 => Some(KnownDifference::Below2G),
            Call::Mremap if len != third || fourth & DONTUNMAP != 0 => {
                overlapping(before, addr, len).any(shared).then_some(KnownDifference::SharedRemap)
            }
            Call::Madvise if third == PAGEOUT => {
                let drops = self.freed || overlapping(before, addr, len).any(is_cached);
                drops.then_some(KnownDifference::PageOut)
            }
            _ => None,
        };
        known.inspect(|&known| self.count(known))
    }

    /// Whether an operation that ended alike made something that will be different.
    pub(crate) fn diverges(&mut self, call: Call, args: [u64; 6], outcome: Outcome) -> bool {
        const ANONYMOUS: u64 = 0x20;
        let beyond = call == Call::Mmap
            && args[3] & ANONYMOUS == 0
            && args[5] >= FILE_BYTES
            && matches!(outcome, Outcome::Value(0..));
        if beyond {
            self.count(KnownDifference::FileSize);
        }
        beyond
    }

    /// Notes an operation that was made.
    pub(crate) fn note(&mut self, call: Call, args: [u64; 6], outcome: Outcome, before: &[Region]) {
        const FREE: u64 = 8;
        let [addr, len, third, ..] = args;
        self.forked |= call == Call::Fork && outcome == Outcome::Value(0);
        self.freed |= call == Call::Madvise && third == FREE;
        let written = match call {
            Call::Write => 8,
            Call::Fill => len,
            _ => return,
        };
        self.file_written |= overlapping(before, addr, written)
            .any(|region| region.file && region.flags.contains(VmFlags::MAYSHARE | VmFlags::WRITE));
    }

    /// Whether Linux's count of locked memory is wrong from now on.
    pub(crate) fn miscounts_locked(
        &mut self,
        call: Call,
        args: [u64; 6],
        linux: &Observation,
        quire: &Observation,
    ) -> bool {
        const INT_PAGES_KIB: u64 = 1 << 33;
        const DONTUNMAP: u64 = 4;
        let (Some(linux), Some(quire)) = (linux.figures, quire.figures) else { return false };
        let known = if quire.locked >= INT_PAGES_KIB {
            KnownDifference::LockedOverflow
        } else if call == Call::Mremap && args[3] & DONTUNMAP != 0 && linux.locked > quire.locked {
            KnownDifference::LockedDontUnmap
        } else {
            return false;
        };
        self.count(known);
        true
    }

    /// Whether the sides differ only in how a call that failed left the mappings split.
    pub(crate) fn left_split(
        &mut self,
        call: Call,
        outcome: Outcome,
        linux: &Observation,
        quire: &Observation,
    ) -> bool {
        const ENOMEM: i64 = 12;
        let is_known = call == Call::Mmap
            && outcome == Outcome::Value(-ENOMEM)
            && linux.regions.len() > quire.regions.len()
            && joined(&linux.regions) == joined(&quire.regions);
        if is_known {
            self.count(KnownDifference::FailedSplit);
        }
        is_known
    }

    /// Whether the contents of a mapping may differ, and why.
    pub(crate) fn contents(&self, region: &Region) -> Option<KnownDifference> {
        if region.file && self.file_written {
            return Some(KnownDifference::FileContents);
        }
        // Shared memory that a fork copied.
        (self.forked && region.flags.contains(VmFlags::MAYSHARE)).then_some(KnownDifference::SharedFork)
    }

    /// Whether different outcomes of an operation that leaves the sides alike are known.
    pub(crate) fn outcome(
        &mut self,
        call: Call,
        args: [u64; 6],
        linux: Outcome,
        seen: &Observation,
    ) -> Option<KnownDifference> {
        const SEGV_PKUERR: u32 = 4;
        let known = match (call, linux) {
            (Call::Read | Call::Fill, Outcome::Signal { code: SEGV_PKUERR, .. }) => {
                Some(KnownDifference::ExecuteOnly)
            }
            (Call::Read, Outcome::Value(_)) => {
                overlapping(&seen.regions, args[0], 8).find_map(|region| self.contents(region))
            }
            _ => None,
        };
        known.inspect(|&known| self.count(known))
    }

    /// Whether the residency of a mapping's pages may differ.
    pub(crate) fn residency(&self, region: &Region) -> bool {
        is_cached(region)
    }

    pub(crate) fn count(&mut self, known: KnownDifference) {
        *self.counts.entry(known).or_default() += 1;
    }

    pub(crate) fn into_counts(self) -> KnownCounts {
        self.counts
    }
}
