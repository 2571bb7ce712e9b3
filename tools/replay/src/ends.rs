//! What Linux and a replay had of each address space when it ended.

use quire_mm::space::SpaceFigures;
use quire_trace::event::LinuxFigures;
use std::collections::BTreeMap;

/// An address space at its end. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceEnd {
    /// Whose it was, by its place in [`ReplayReport::processes`](super::ReplayReport::processes).
    pub process: usize,
    /// The number of the event that made it.
    pub began: u64,
    /// The number of the event at which it ended.
    pub ended: u64,
    /// The number of the address space that it was a copy of when it began, by a fork.
    pub copy_of: Option<usize>,
    /// Anonymous memory that Linux had, swapped out or not.
    pub linux_anonymous: u64,
    /// Page tables that Linux had.
    pub linux_page_tables: u64,
    /// Shared memory that Linux had mapped.
    pub linux_shared: u64,
    /// Anonymous memory that the replay had.
    pub anonymous: u64,
    /// Page tables that the replay had.
    pub page_tables: u64,
    /// Shared memory that the replay had mapped.
    pub shared: u64,
}

/// Those that ended, by their numbers: they are counted from 0 as the trace makes them.
pub type SpaceEnds = BTreeMap<usize, SpaceEnd>;

/// Follows address spaces.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// By number: the event that made it, and what it was a copy of.
    made: Vec<(u64, Option<usize>)>,
    ended: SpaceEnds,
}

impl Ends {
    /// The next address space is made by event number `event`; returns its number.
    pub(super) fn made(&mut self, event: u64, copy_of: Option<usize>) -> usize {
        self.made.push((event, copy_of));
        self.made.len() - 1
    }

    /// Address space number `number` of the process at `process` ends at event number `event`, and this is
    /// what Linux has in it.
    pub(super) fn end(&mut self, (number, process): (usize, usize), event: u64, linux: &LinuxFigures) {
        let Some(&(began, copy_of)) = self.made.get(number) else { return };
        let end = SpaceEnd {
            process,
            began,
            ended: event,
            copy_of,
            linux_anonymous: linux.rss_anon.saturating_add(linux.vm_swap),
            linux_page_tables: linux.vm_pte,
            linux_shared: linux.rss_shmem,
            ..SpaceEnd::default()
        };
        self.ended.insert(number, end);
    }

    /// Address space number `number` ends or is gone, and this is what the replay has in it. Where page
    /// faults are learnt from looks at page tables, the last ones come after Linux's figures: the largest
    /// counts. Returns what Linux had, if that is known.
    pub(super) fn left(&mut self, number: usize, replay: SpaceFigures) -> Option<SpaceEnd> {
        let end = self.ended.get_mut(&number)?;
        end.anonymous = end.anonymous.max(replay.resident_anonymous);
        end.page_tables = end.page_tables.max(replay.page_tables);
        end.shared = end.shared.max(replay.resident_shmem);
        Some(*end)
    }

    pub(super) fn finish(self) -> SpaceEnds {
        self.ended
    }
}
