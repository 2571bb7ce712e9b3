//! Shared memory of a replay: which pages of it exist, by touches.
//!
//! Each mapping of shared memory has pages of its own in a replay, which count as those of files. Linux can
//! drop pages of files, but shared memory it can only swap, so that a limit has to hold it. Therefore its
//! pages are counted here, beside the machine: each page of an object once, whichever mappings and processes
//! touch it. Shared anonymous memory ends with its last mapping. A file in memory and a System V segment stay
//! until the end of the recording, which does not show their last descriptor.

use super::call::populated_bytes;
use super::files::FileIds;
use super::overlap::pages_of;
use crate::event::{Call, CallDetail, FileKind};
use quire_arch::{PAGE_SHIFT, PAGE_SIZE};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

const MLOCK_ONFAULT: u64 = 1;
/// Pages that one call brings in at most: more can only be claimed.
const MOST_POPULATED: u64 = 1 << 26;
/// Pages of a word of bits.
const WORD: u64 = 64;

/// A part of an address space that maps an object.
#[derive(Clone, Copy, Debug)]
struct Part {
    end: u64,
    object: u64,
    /// The page of the object at its start.
    page: u64,
}

/// Parts of one address space by their start.
type Parts = BTreeMap<u64, Part>;

/// Shared anonymous memory, a file in memory, or a System V segment.
#[derive(Debug, Default)]
struct Object {
    /// A bit for each page that exists, [`WORD`] in a word.
    pages: BTreeMap<u64, u64>,
    /// Parts of address spaces that map it.
    parts: u64,
    /// It ends when nothing maps it.
    anonymous: bool,
}

/// The shared memory of all programs.
#[derive(Debug, Default)]
pub(super) struct SharedMemory {
    /// By the number of the address space; none of one that maps none.
    spaces: HashMap<usize, Parts>,
    objects: Objects,
}

#[derive(Debug, Default)]
struct Objects {
    by_number: HashMap<u64, Object>,
    pages: u64,
    /// Of these, pages of objects that nothing maps.
    unmapped: u64,
}

impl Object {
    fn pages(&self) -> u64 {
        self.pages.values().map(|bits| u64::from(bits.count_ones())).sum()
    }
}

impl Objects {
    fn mapped(&mut self, number: u64) {
        let Some(object) = self.by_number.get_mut(&number) else { return };
        if object.parts == 0 {
            self.unmapped -= object.pages();
        }
        object.parts += 1;
    }

    fn unmapped(&mut self, number: u64) {
        let Some(object) = self.by_number.get_mut(&number) else { return };
        object.parts -= 1;
        if object.parts > 0 {
            return;
        }
        if object.anonymous {
            self.pages -= object.pages();
            self.by_number.remove(&number);
        } else {
            self.unmapped += object.pages();
        }
    }

    /// These pages of an object exist.
    fn add(&mut self, number: u64, pages: Range<u64>) {
        let Some(object) = self.by_number.get_mut(&number) else { return };
        for (word, wanted) in words(pages) {
            let bits = object.pages.entry(word).or_default();
            self.pages += u64::from((wanted & !*bits).count_ones());
            *bits |= wanted;
        }
    }

    /// A hole is punched into an object.
    fn remove(&mut self, number: u64, pages: Range<u64>) {
        let Some(object) = self.by_number.get_mut(&number) else { return };
        if pages.is_empty() {
            return;
        }
        for (&word, bits) in object.pages.range_mut(pages.start / WORD..=(pages.end - 1) / WORD) {
            let gone = *bits & mask(word, &pages);
            self.pages -= u64::from(gone.count_ones());
            *bits &= !gone;
        }
    }
}

/// The bits of `word` that stand for `pages`.
fn mask(word: u64, pages: &Range<u64>) -> u64 {
    let place = |page: u64| page.saturating_sub(word * WORD).min(WORD) as u32;
    let below = |place: u32| 1_u64.checked_shl(place).map_or(u64::MAX, |bit| bit - 1);
    below(place(pages.end)) & !below(place(pages.start))
}

/// The words of some pages, with their bits.
fn words(pages: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    (pages.start / WORD..pages.end.div_ceil(WORD)).map(move |word| (word, mask(word, &pages)))
}

/// The parts in `range`, cut to it.
fn within(parts: &Parts, range: &Range<u64>) -> Vec<(u64, Part)> {
    let first = parts.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
    let cut = |(&start, part): (&u64, &Part)| {
        let (from, end) = (start.max(range.start), part.end.min(range.end));
        let page = part.page + ((from - start) >> PAGE_SHIFT);
        (from < end).then_some((from, Part { end, page, ..*part }))
    };
    parts.range(first..range.end.max(first)).filter_map(cut).collect()
}

/// Nothing is mapped in `range` any more.
fn clear(parts: &mut Parts, objects: &mut Objects, range: &Range<u64>) {
    for (start, cut) in within(parts, range) {
        let Some((&whole, &part)) = parts.range(..=start).next_back() else { continue };
        parts.remove(&whole);
        if whole < start {
            objects.mapped(part.object);
            parts.insert(whole, Part { end: start, ..part });
        }
        if cut.end < part.end {
            objects.mapped(part.object);
            parts.insert(cut.end, Part { page: cut.page + ((cut.end - start) >> PAGE_SHIFT), ..part });
        }
        objects.unmapped(part.object);
    }
}

impl SharedMemory {
    /// What exists of it, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.objects.pages << PAGE_SHIFT
    }

    /// Of that, what no process maps: whether it still exists is not recorded.
    pub(super) fn unmapped_bytes(&self) -> u64 {
        self.objects.unmapped << PAGE_SHIFT
    }

    /// Address space number `number` touched `addr`.
    pub(super) fn touch(&mut self, number: usize, addr: u64) {
        let Some(parts) = self.spaces.get(&number) else { return };
        let Some((start, part)) = parts.range(..=addr).next_back().filter(|(_, part)| addr < part.end) else {
            return;
        };
        let page = part.page + ((addr - start) >> PAGE_SHIFT);
        self.objects.add(part.object, page..page + 1);
    }

    /// The child has what the parent maps.
    pub(super) fn fork(&mut self, parent: usize, child: usize) {
        if let Some(parts) = self.spaces.get(&parent).cloned() {
            parts.values().for_each(|part| self.objects.mapped(part.object));
            self.spaces.insert(child, parts);
        }
    }

    /// The address space is gone.
    pub(super) fn leave(&mut self, number: usize) {
        let parts = self.spaces.remove(&number).unwrap_or_default();
        parts.values().for_each(|part| self.objects.unmapped(part.object));
    }

    /// Address space number `number` made a call with its recorded result.
    pub(super) fn call(&mut self, number: usize, call: &Call, files: &mut FileIds) {
        if call.errno().is_some() {
            return;
        }
        let [first, second, third, ..] = call.args;
        let range = pages_of(first, second);
        match i64::from(call.number) {
            libc::SYS_mmap => self.map(number, call, files),
            libc::SYS_munmap => self.clear(number, &range),
            libc::SYS_mremap => self.remap(number, call),
            libc::SYS_shmat => {
                let CallDetail::Mapped { start, bytes } = call.detail else { return };
                let segment = files.segment(first & 0xffff_ffff);
                self.put(number, &pages_of(start, bytes), segment, 0, false);
            }
            libc::SYS_shmdt => self.detach(number, first),
            libc::SYS_mlock => self.populate(number, &range),
            libc::SYS_mlock2 if third & MLOCK_ONFAULT == 0 => self.populate(number, &range),
            libc::SYS_mlockall => {
                let has = |flag: i32| first & flag as u64 != 0;
                if has(libc::MCL_CURRENT) && !has(libc::MCL_ONFAULT) {
                    self.populate(number, &(0..u64::MAX));
                }
            }
            libc::SYS_madvise => match third as i32 {
                libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => self.populate(number, &range),
                libc::MADV_REMOVE => self.punch(number, &range),
                _ => {}
            },
            _ => {}
        }
    }

    fn map(&mut self, number: usize, call: &Call, files: &mut FileIds) {
        let [_, len, _, flags, _, offset] = call.args;
        let range = pages_of(call.result as u64, len);
        let has = |flag: i32| flags & flag as u64 != 0;
        let shared = matches!(flags as i32 & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
        let object = match call.file() {
            // Huge pages have a pool of their own.
            _ if !shared || has(libc::MAP_HUGETLB) => None,
            Some(file) if file.kind == FileKind::Memory => {
                Some((files.id(file.device, file.inode, &file.name), offset >> PAGE_SHIFT, false))
            }
            Some(file) if file.kind == FileKind::Zero => Some((files.fresh(), 0, true)),
            None if has(libc::MAP_ANONYMOUS) => Some((files.fresh(), 0, true)),
            _ => None,
        };
        let Some((object, page, anonymous)) = object else { return self.clear(number, &range) };
        self.put(number, &range, object, page, anonymous);
        if has(libc::MAP_POPULATE) || has(libc::MAP_LOCKED) {
            self.populate(number, &pages_of(range.start, populated_bytes(call)));
        }
    }

    fn put(&mut self, number: usize, range: &Range<u64>, object: u64, page: u64, anonymous: bool) {
        self.clear(number, range);
        if range.is_empty() {
            return;
        }
        self.objects.by_number.entry(object).or_insert_with(|| Object { anonymous, ..Object::default() });
        self.objects.mapped(object);
        self.spaces.entry(number).or_default().insert(range.start, Part { end: range.end, object, page });
    }

    fn clear(&mut self, number: usize, range: &Range<u64>) {
        if let Some(parts) = self.spaces.get_mut(&number) {
            clear(parts, &mut self.objects, range);
        }
    }

    /// `mremap`: what is mapped at the old place is at the new one, as long as that.
    fn remap(&mut self, number: usize, call: &Call) {
        let [start, old_len, new_len, flags, ..] = call.args;
        let (old, new) = (pages_of(start, old_len), pages_of(call.result as u64, new_len));
        let Some(parts) = self.spaces.get(&number) else { return };
        // A length of 0 maps the same again.
        let named = start..old.end.max(start.saturating_add(PAGE_SIZE));
        let there = within(parts, &named).into_iter().find(|(from, _)| *from == old.start);
        let Some((_, part)) = there else { return self.clear(number, &new) };
        // So that it does not end in between.
        self.objects.mapped(part.object);
        let stays = flags & libc::MREMAP_DONTUNMAP as u64 != 0 || old_len == 0;
        if !stays {
            self.clear(number, &old);
        }
        self.put(number, &new, part.object, part.page, false);
        self.objects.unmapped(part.object);
    }

    /// `shmdt`: what remains of the segment that was attached at `addr`.
    fn detach(&mut self, number: usize, addr: u64) {
        let Some(parts) = self.spaces.get(&number) else { return };
        let attached =
            |(start, part): &(&u64, &Part)| start.checked_sub(part.page << PAGE_SHIFT) == Some(addr);
        let found: Vec<(u64, Part)> =
            parts.range(addr..).filter(attached).map(|(&start, part)| (start, *part)).collect();
        let Some((_, segment)) = found.first().copied() else { return };
        for (start, part) in found.into_iter().filter(|(_, part)| part.object == segment.object) {
            self.clear(number, &(start..part.end));
        }
    }

    fn of_range(&self, number: usize, range: &Range<u64>) -> Vec<(u64, Range<u64>)> {
        let parts = self.spaces.get(&number).map(|parts| within(parts, range)).unwrap_or_default();
        let pages = |(start, part): (u64, Part)| {
            (part.object, part.page..part.page + ((part.end - start) >> PAGE_SHIFT))
        };
        parts.into_iter().map(pages).collect()
    }

    fn populate(&mut self, number: usize, range: &Range<u64>) {
        let mut left = MOST_POPULATED;
        for (object, pages) in self.of_range(number, range) {
            let count = (pages.end - pages.start).min(left);
            left -= count;
            self.objects.add(object, pages.start..pages.start + count);
        }
    }

    fn punch(&mut self, number: usize, range: &Range<u64>) {
        for (object, pages) in self.of_range(number, range) {
            self.objects.remove(object, pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::FileFacts;
    use std::sync::Arc;

    const MIB: u64 = 1 << 20;
    const BASE: u64 = 0x10_0000_0000;
    const ANONYMOUS: i32 = libc::MAP_SHARED | libc::MAP_ANONYMOUS;

    /// Shared memory of programs that make calls.
    #[derive(Default)]
    struct Programs(SharedMemory, FileIds);

    impl Programs {
        fn call(&mut self, number: usize, call: i64, args: [u64; 6], result: u64, detail: CallDetail) {
            let call = Call { number: call as u32, args, result: result as i64, detail };
            self.0.call(number, &call, &mut self.1);
        }

        fn map(&mut self, number: usize, addr: u64, len: u64, flags: i32) {
            let args = [addr, len, 3, flags as u64, u64::MAX, 0];
            self.call(number, libc::SYS_mmap, args, addr, CallDetail::None);
        }

        /// A file in memory, from its second page on.
        fn map_memory(&mut self, number: usize, addr: u64, len: u64, inode: u64) {
            let facts = FileFacts { kind: FileKind::Memory, inode, size: 64 * MIB, ..FileFacts::default() };
            let args = [addr, len, 3, libc::MAP_SHARED as u64, 3, PAGE_SIZE];
            self.call(number, libc::SYS_mmap, args, addr, CallDetail::File(Arc::new(facts)));
        }

        fn advise(&mut self, addr: u64, len: u64, advice: i32) {
            self.call(0, libc::SYS_madvise, [addr, len, advice as u64, 0, 0, 0], 0, CallDetail::None);
        }

        fn unmap(&mut self, number: usize, addr: u64, len: u64) {
            self.call(number, libc::SYS_munmap, [addr, len, 0, 0, 0, 0], 0, CallDetail::None);
        }

        fn touch(&mut self, number: usize, addr: u64, len: u64) {
            (addr..addr + len).step_by(PAGE_SIZE as usize).for_each(|addr| self.0.touch(number, addr));
        }

        fn pages(&self) -> u64 {
            self.0.bytes() / PAGE_SIZE
        }
    }

    #[test]
    fn a_page_counts_once_for_all_that_map_it() {
        let mut programs = Programs::default();
        programs.map(0, BASE, MIB, ANONYMOUS);
        programs.touch(0, BASE, 40 * PAGE_SIZE);
        programs.0.fork(0, 1);
        programs.touch(1, BASE + 20 * PAGE_SIZE, 40 * PAGE_SIZE);
        programs.touch(1, BASE + MIB, PAGE_SIZE);
        assert_eq!(programs.pages(), 60);
        // A file in memory is one, however often it is mapped.
        programs.map_memory(0, BASE + MIB, MIB, 7);
        programs.map_memory(1, BASE + 4 * MIB, MIB, 7);
        programs.touch(0, BASE + MIB, 10 * PAGE_SIZE);
        programs.touch(1, BASE + 4 * MIB, 12 * PAGE_SIZE);
        assert_eq!(programs.pages(), 72);
        // Private memory, also of the same file, is none.
        programs.map(0, BASE + MIB, MIB, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        programs.touch(0, BASE + MIB, MIB);
        assert_eq!(programs.pages(), 72);
    }

    #[test]
    fn anonymous_memory_ends_with_its_last_mapping_and_a_file_does_not() {
        let mut programs = Programs::default();
        programs.map(0, BASE, MIB, ANONYMOUS);
        programs.map_memory(0, BASE + 2 * MIB, MIB, 7);
        programs.0.fork(0, 1);
        programs.touch(1, BASE, MIB);
        programs.touch(1, BASE + 2 * MIB, MIB);
        programs.unmap(0, BASE, MIB / 2);
        programs.0.leave(1);
        assert_eq!(programs.pages(), 512, "the other half is mapped");
        programs.unmap(0, BASE, 4 * MIB);
        assert_eq!(programs.pages(), 256);
        assert_eq!(programs.0.unmapped_bytes(), MIB, "its last descriptor may be closed");
        programs.map_memory(0, BASE, MIB, 7);
        assert_eq!(programs.0.unmapped_bytes(), 0);
        programs.touch(0, BASE, MIB);
        assert_eq!(programs.pages(), 256, "the same pages");
    }

    #[test]
    fn only_a_hole_frees_pages_of_what_is_mapped() {
        let mut programs = Programs::default();
        programs.map(0, BASE, MIB, ANONYMOUS | libc::MAP_POPULATE);
        assert_eq!(programs.pages(), 256);
        programs.advise(BASE, MIB, libc::MADV_DONTNEED);
        assert_eq!(programs.pages(), 256);
        programs.advise(BASE + 60 * PAGE_SIZE, 70 * PAGE_SIZE, libc::MADV_REMOVE);
        assert_eq!(programs.pages(), 186);
        programs.advise(BASE, 100 * PAGE_SIZE, libc::MADV_POPULATE_WRITE);
        assert_eq!(programs.pages(), 226);
    }

    #[test]
    fn what_is_moved_keeps_its_pages() {
        let mut programs = Programs::default();
        programs.map(0, BASE, MIB, ANONYMOUS);
        programs.touch(0, BASE, MIB / 2);
        let moved = [BASE, MIB, 2 * MIB, 1, 0, 0];
        programs.call(0, libc::SYS_mremap, moved, BASE + 8 * MIB, CallDetail::None);
        programs.touch(0, BASE, MIB);
        programs.touch(0, BASE + 8 * MIB, MIB);
        assert_eq!(programs.pages(), 256);
        let again = [BASE + 8 * MIB, 0, MIB, 1, 0, 0];
        programs.call(0, libc::SYS_mremap, again, BASE, CallDetail::None);
        programs.unmap(0, BASE + 8 * MIB, 2 * MIB);
        assert_eq!(programs.pages(), 256, "mapped a second time");
        programs.unmap(0, BASE, MIB);
        assert_eq!(programs.pages(), 0);
    }

    #[test]
    fn a_segment_stays_when_it_is_detached() {
        let mut programs = Programs::default();
        for (number, id) in [(0, 5), (1, 5), (1, 6)] {
            let detail = CallDetail::Mapped { start: BASE + id * MIB, bytes: MIB };
            programs.call(number, libc::SYS_shmat, [id, 0, 0, 0, 0, 0], BASE + id * MIB, detail);
        }
        programs.touch(0, BASE + 5 * MIB, MIB);
        programs.touch(1, BASE + 5 * MIB, 2 * MIB);
        assert_eq!(programs.pages(), 512);
        programs.unmap(1, BASE + 5 * MIB, PAGE_SIZE);
        programs.call(1, libc::SYS_shmdt, [BASE + 5 * MIB, 0, 0, 0, 0, 0], 0, CallDetail::None);
        programs.touch(1, BASE + 5 * MIB, MIB);
        assert_eq!((programs.pages(), programs.0.spaces[&1].len()), (512, 1));
    }
}
