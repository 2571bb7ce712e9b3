//! The mappings of an address space, as far as its need of memory depends on them.

use super::budget::Budget;
use super::file_pages::{FileAt, OfFile};
use quire_trace::event::{Mapping, VmFlags};
use std::collections::BTreeMap;
use std::ops::Range;

/// What `madvise` said of large folios.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Advice {
    #[default]
    None,
    Huge,
    NoHuge,
}

/// What a mapping is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Kind {
    /// Private and without a file.
    pub(super) anonymous: bool,
    /// Some access is allowed.
    pub(super) accessible: bool,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) shared: bool,
    /// A page of it may not come in whatever access is allowed: a guard, or memory of a device. Or less is
    /// allowed than stands here.
    pub(super) refuses: bool,
    /// What is mapped comes in at once.
    pub(super) locked: bool,
    /// Locks do not mark it, so that also one on fault brings it in: a driver's.
    pub(super) of_driver: bool,
    pub(super) grows_down: bool,
    /// A child gets it without its pages.
    pub(super) wiped_at_fork: bool,
    /// A child does not get it.
    pub(super) left_at_fork: bool,
    pub(super) advice: Advice,
    /// What it shows of a file whose size is known.
    pub(super) file: Option<FileAt>,
}

impl Kind {
    /// Private memory that may be read and written, as that of a heap.
    pub(super) const HEAP: Self = Self {
        anonymous: true,
        accessible: true,
        readable: true,
        writable: true,
        shared: false,
        refuses: false,
        locked: false,
        of_driver: false,
        grows_down: false,
        wiped_at_fork: false,
        left_at_fork: false,
        advice: Advice::None,
        file: None,
    };

    /// What a mapping of a new image is. `file`: what it shows of a file whose size is known.
    pub(super) fn of(mapping: &Mapping, file: Option<FileAt>) -> Self {
        let flagged = |letters| mapping.flags.has(letters);
        // As the replay installs it: the flags count, where there are any.
        let permits =
            |letters, shown| if mapping.flags == VmFlags::default() { shown } else { flagged(letters) };
        let (readable, writable) = (permits(*b"rd", mapping.read), permits(*b"wr", mapping.write));
        let shared = permits(*b"sh", mapping.shared);
        let advice = if flagged(*b"hg") {
            Advice::Huge
        } else if flagged(*b"nh") {
            Advice::NoHuge
        } else {
            Advice::None
        };
        Self {
            anonymous: !shared && mapping.inode == 0,
            accessible: readable || writable || permits(*b"ex", mapping.execute),
            readable,
            writable,
            shared,
            refuses: flagged(*b"io") || flagged(*b"pf"),
            locked: flagged(*b"lo"),
            of_driver: flagged(*b"de") || flagged(*b"mm"),
            grows_down: flagged(*b"gd")
                || mapping.flags == VmFlags::default() && &*mapping.name == b"[stack]",
            wiped_at_fork: flagged(*b"wf"),
            left_at_fork: flagged(*b"dc"),
            advice,
            // What a driver maps is no page of the cache.
            file: file.filter(|_| mapping.inode != 0 && ![*b"io", *b"pf", *b"mm"].into_iter().any(flagged)),
        }
    }

    /// Whether a touch, or a call that brings pages in, takes a page of the program's own. `writes`: it
    /// writes.
    pub(super) fn takes_frame(self, writes: bool) -> bool {
        match self.file {
            // A write to private memory copies; all else is the cache's.
            Some(_) => writes && !self.shared,
            None => !self.anonymous || writes,
        }
    }

    /// Whether a touch can bring in more than a page, and whether such memory is advised to.
    pub(super) fn large(self) -> Option<usize> {
        let possible = self.anonymous && self.advice != Advice::NoHuge;
        possible.then_some(usize::from(self.advice == Advice::Huge))
    }
}

/// The end of user space, which no mapping crosses.
pub(super) const USER_END: u64 = 1 << 47;

/// Mappings by their start.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    parts: BTreeMap<u64, (u64, Kind)>,
    /// What of them is of each file whose size is known.
    files: BTreeMap<usize, OfFile>,
    /// Files that came to be mapped, 1, or are no longer, -1, since that was asked last.
    changed: BTreeMap<usize, i64>,
}

/// The pages that hold a range of bytes, in user space.
pub(super) fn pages_of(start: u64, len: u64) -> Range<u64> {
    let end = start.saturating_add(len).min(USER_END);
    let start = start & !4095;
    start..end.next_multiple_of(4096).max(start)
}

impl Layout {
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// The mapping at `addr`.
    pub(super) fn at(&self, addr: u64) -> Option<(Range<u64>, Kind)> {
        let (&start, &(end, kind)) = self.parts.range(..=addr).next_back()?;
        (addr < end).then_some((start..end, kind))
    }

    /// The parts of mappings in `range`.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, Kind)> {
        let first = self.at(range.start).map_or(range.start, |(found, _)| found.start);
        let all = self.parts.range(first..range.end.max(first));
        all.map(move |(&start, &(end, kind))| (start.max(range.start)..end.min(range.end), kind))
            .filter(|(part, _)| part.start < part.end)
    }

    /// Nothing is mapped in `range` any more.
    pub(super) fn clear(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        for place in [range.start, range.end] {
            self.divide(place);
        }
        while let Some((&start, _)) = self.parts.range(range.clone()).next() {
            self.remove(start);
        }
    }

    /// `range` is a mapping of this kind.
    pub(super) fn set(&mut self, mut range: Range<u64>, kind: Kind) {
        self.clear(range.clone());
        if range.is_empty() {
            return;
        }
        // Only anonymous memory is merged: another segment or file beside this one stays another.
        if kind.anonymous {
            if let Some((before, _)) =
                self.at(range.start.wrapping_sub(1)).filter(|(_, other)| *other == kind)
            {
                range.start = before.start;
            }
            if let Some((after, _)) = self.at(range.end).filter(|(_, other)| *other == kind) {
                self.remove(after.start);
                range.end = after.end;
            }
        }
        self.insert(range, kind);
    }

    /// What is mapped in `range` changes so. Returns the parts that changed, with what they were and are;
    /// `None` if they are too many. That it looks at the others was charged before.
    pub(super) fn change(
        &mut self,
        budget: &mut Budget,
        range: Range<u64>,
        to: impl Fn(Kind) -> Kind,
    ) -> Option<Vec<(Range<u64>, Kind, Kind)>> {
        let parts = self.within(range).map(|(part, kind)| (part, kind, to(kind)));
        let parts: Vec<_> = parts.filter(|(_, before, after)| before != after).collect();
        if !budget.edit(parts.len() as u64) {
            return None;
        }
        for (part, _, kind) in &parts {
            self.set(part.clone(), *kind);
        }
        Some(parts)
    }

    /// The mapping that a touch at `addr` finds; a stack above grows down to it, if it is not larger than
    /// `most` then.
    pub(super) fn touched(&mut self, addr: u64, most: u64) -> Option<Kind> {
        if let Some((_, kind)) = self.at(addr) {
            return Some(kind);
        }
        let (&start, &(end, kind)) = self.parts.range(addr..).next()?;
        let place = addr & !4095;
        if !kind.grows_down || end - place > most {
            return None;
        }
        self.remove(start);
        self.insert(place..end, kind);
        Some(kind)
    }

    fn divide(&mut self, place: u64) {
        if let Some((range, kind)) = self.at(place).filter(|(range, _)| range.start < place) {
            self.insert(range.start..place, kind);
            self.insert(place..range.end, kind);
        }
    }

    /// What is mapped of this file.
    pub(super) fn of_file(&self, file: usize) -> OfFile {
        self.files.get(&file).copied().unwrap_or_default()
    }

    /// The files that came to be mapped, 1, or are no longer, -1, since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeMap<usize, i64> {
        std::mem::take(&mut self.changed)
    }

    /// It is a copy for another address space.
    pub(super) fn note_copied(&mut self) {
        self.changed = self.files.keys().map(|&file| (file, 1)).collect();
    }

    /// Its address space is gone: the files that it had mapped as far as that was told.
    pub(super) fn into_left(mut self) -> BTreeMap<usize, i64> {
        for file in self.files.keys() {
            *self.changed.entry(*file).or_default() -= 1;
        }
        self.changed
    }

    /// `range` is a mapping, where none begins but at its start.
    fn insert(&mut self, range: Range<u64>, kind: Kind) {
        self.remove(range.start);
        if let Some(file) = kind.file {
            let of_file = self.files.entry(file.number()).or_default();
            if of_file.mappings == 0 {
                *self.changed.entry(file.number()).or_default() += 1;
            }
            of_file.mappings += 1;
            of_file.bytes += range.end - range.start;
        }
        self.parts.insert(range.start, (range.end, kind));
    }

    /// The mapping that begins there is none any more.
    fn remove(&mut self, start: u64) {
        let Some((end, kind)) = self.parts.remove(&start) else { return };
        let Some(file) = kind.file else { return };
        if let Some(of_file) = self.files.get_mut(&file.number()) {
            of_file.mappings -= 1;
            of_file.bytes -= end - start;
            if of_file.mappings == 0 {
                self.files.remove(&file.number());
                *self.changed.entry(file.number()).or_default() -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(layout: &Layout) -> Vec<Range<u64>> {
        layout.within(0..USER_END).map(|(range, _)| range).collect()
    }

    #[test]
    fn mappings_are_divided_and_anonymous_ones_merged() {
        let mut layout = Layout::default();
        let file = Kind { anonymous: false, ..Kind::HEAP };
        layout.set(0x1000..0x5000, Kind::HEAP);
        layout.set(0x5000..0x9000, Kind::HEAP);
        layout.set(0x9000..0xa000, file);
        layout.set(0xa000..0xb000, file);
        assert_eq!(all(&layout), [0x1000..0x9000, 0x9000..0xa000, 0xa000..0xb000]);
        layout.clear(0x3000..0x4000);
        assert_eq!(layout.at(0x3fff), None);
        assert_eq!(layout.within(0x2000..0x9001).count(), 3);
        let mut budget = Budget::SMALL;
        let advised = |kind| Kind { advice: Advice::Huge, ..kind };
        let parts = layout.change(&mut budget, 0x4000..0x6000, advised);
        assert_eq!(parts.unwrap().len(), 1);
        assert_eq!(layout.change(&mut budget, 0x4000..0x6000, advised), Some(Vec::new()));
        assert_eq!(layout.at(0x4000).unwrap().0, 0x4000..0x6000);
        layout.set(0x3000..0x4000, Kind::HEAP);
        assert_eq!(layout.at(0x1000).unwrap().0, 0x1000..0x4000);
    }

    #[test]
    fn what_is_mapped_of_a_file_is_what_its_parts_have() {
        let mut layout = Layout::default();
        let kinds =
            [0, 1].map(|number| Kind { anonymous: false, file: Some(FileAt::of(number)), ..Kind::HEAP });
        let [file, other] = kinds;
        let found = |layout: &Layout| {
            let parts = |file| layout.within(0..USER_END).filter(move |(_, kind)| *kind == file);
            for (number, kind) in kinds.into_iter().enumerate() {
                let bytes = parts(kind).map(|(part, _)| part.end - part.start).sum();
                assert_eq!(layout.of_file(number), OfFile { mappings: parts(kind).count() as u64, bytes });
            }
            layout.of_file(0)
        };
        layout.set(0x1000..0x9000, file);
        layout.set(0x9000..0xa000, file);
        assert_eq!(found(&layout), OfFile { mappings: 2, bytes: 0x9000 });
        layout.clear(0x3000..0x4000);
        layout.set(0x5000..0x6000, other);
        assert_eq!(found(&layout), OfFile { mappings: 4, bytes: 0x7000 });
        let mut budget = Budget::SMALL;
        layout.change(&mut budget, 0x1000..0x3000, |_| other);
        layout.set(0x4000..0x5000, Kind::HEAP);
        assert_eq!(found(&layout), OfFile { mappings: 2, bytes: 0x4000 });
        layout.clear(0..USER_END);
        assert_eq!((found(&layout), layout.files.len()), (OfFile::default(), 0));
        layout.set(0x5000..0x6000, Kind { grows_down: true, ..file });
        assert!(layout.touched(0x2000, u64::MAX).is_some());
        assert_eq!(layout.of_file(0), OfFile { mappings: 1, bytes: 0x4000 });
    }

    #[test]
    fn a_stack_grows_and_other_memory_does_not() {
        let mut layout = Layout::default();
        layout.set(0x10_0000..0x20_0000, Kind::HEAP);
        layout.set(0x7fff_0000_0000..0x7fff_0001_0000, Kind { grows_down: true, ..Kind::HEAP });
        assert_eq!(layout.touched(0x1000, u64::MAX), None);
        assert_eq!(layout.touched(0x7ffe_ffff_0008, 0x1_ffff), None, "a page more than it may have");
        assert!(layout.touched(0x7ffe_ffff_0008, 0x2_0000).is_some());
        assert_eq!(layout.at(0x7ffe_ffff_0000).unwrap().0, 0x7ffe_ffff_0000..0x7fff_0001_0000);
        // Without a limit down to what lies below.
        assert_eq!(layout.touched(0x1f_ffff, u64::MAX).unwrap(), Kind::HEAP);
        assert!(layout.touched(0x20_0000, u64::MAX).is_some_and(|kind| kind.grows_down));
        assert_eq!(layout.at(0x20_0000).unwrap().0, 0x20_0000..0x7fff_0001_0000);
        assert_eq!(pages_of(0x1fff, 2), 0x1000..0x3000);
        assert_eq!(pages_of(0x1000, u64::MAX), 0x1000..USER_END);
        assert_eq!(pages_of(u64::MAX, 7), !4095..!4095);
    }
}
