//! Shared memory of a replay: which pages of it exist, by touches.
//!
//! Each mapping of shared memory has pages of its own in a replay, which count as those of files. Linux can
//! drop pages of files, but shared memory it can only swap, so that a limit has to hold it. Therefore its
//! pages are counted here, beside the machine: each page of an object once, whichever mappings and processes
//! touch it. Shared anonymous memory ends with its last mapping. A file in memory and a System V segment stay
//! until the end of the recording, which does not show their last descriptor.
//!
//! What is written to a file in memory by `write`, or was there before, comes in by no touch. Linux maps the
//! pages around a page that is read, as far as they are there, so that one touch in 16 is recorded: all 16
//! count. That is too much by at most what is a hole. A private mapping of such a file has its pages, too,
//! until they are written to, and they stay like all others of the file.

use super::call::populated_bytes;
use super::files::FileIds;
use super::overlap::pages_of;
use super::page_set::PageSet;
use crate::event::{Access, Call, CallDetail, FileKind};
use quire_arch::{PAGE_SHIFT, PAGE_SIZE};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::iter;
use std::ops::Range;

const MLOCK_ONFAULT: u64 = 1;
/// What Linux maps around a page that is read (`fault_around_bytes`), in bytes, within one page table.
const AROUND: u64 = 16 * PAGE_SIZE;
const TABLE: u64 = 512 * PAGE_SIZE;
/// Memory that can be read, written or executed.
const PROTECTIONS: u64 = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u64;
/// Pages that are counted at most: 4 PiB. More can only be claimed.
const MOST_PAGES: u128 = 1 << 40;

/// A part of an address space that maps an object.
#[derive(Clone, Copy, Debug)]
struct Part {
    end: u64,
    object: u64,
    /// The page of the object at its start.
    page: u64,
    /// It may be accessed. Else nothing brings its pages in.
    accessible: bool,
    /// What it grows by comes in at once.
    locked: bool,
}

/// Parts of one address space by their start.
type Parts = BTreeMap<u64, Part>;

/// What a new mapping is like.
#[derive(Clone, Copy, Debug)]
struct New {
    object: u64,
    page: u64,
    size: u64,
    accessible: bool,
    locked: bool,
    anonymous: bool,
}

/// Shared anonymous memory, a file in memory, or a System V segment.
#[derive(Debug, Default)]
struct Object {
    /// Those that exist.
    pages: PageSet,
    /// Pages that it has at least: those beyond have nothing to come in from, as far as that is known. What a
    /// file grows by is not recorded, but what is mapped, touched or brought in tells. 0: not known.
    size: u64,
    /// Parts of address spaces that map it.
    parts: u64,
    /// It ends when nothing maps it.
    anonymous: bool,
}

/// The shared memory of all programs.
#[derive(Debug, Default)]
pub(super) struct SharedMemory {
    /// By the number of the address space.
    spaces: Vec<Parts>,
    /// Address spaces that lock what they map from now on (`MCL_FUTURE`).
    lock_new: HashSet<usize>,
    objects: Objects,
}

#[derive(Debug, Default)]
struct Objects {
    by_number: HashMap<u64, Object>,
    /// Of all together.
    pages: u128,
    /// Of these, pages of objects that nothing maps.
    unmapped: u128,
}

impl Objects {
    fn mapped(&mut self, number: u64) {
        let Some(object) = self.by_number.get_mut(&number) else { return };
        if object.parts == 0 {
            self.unmapped -= u128::from(object.pages.len());
        }
        object.parts += 1;
    }

    fn unmapped(&mut self, number: u64) {
        let Some(object) = self.by_number.get_mut(&number) else { return };
        object.parts -= 1;
        if object.parts > 0 {
            return;
        }
        let pages = u128::from(object.pages.len());
        if object.anonymous {
            self.pages -= pages;
            self.by_number.remove(&number);
        } else {
            self.unmapped += pages;
        }
    }

    /// These pages of an object exist.
    fn add(&mut self, number: u64, pages: Range<u64>) {
        let Some(object) = self.by_number.get_mut(&number) else { return };
        let before = object.pages.len();
        object.size = object.size.max(pages.end);
        object.pages.add(pages);
        self.pages += u128::from(object.pages.len() - before);
    }

    /// Page number `page` was read, and those that Linux maps around it are `around`: what is there of these
    /// exists. Anonymous memory has nothing that did not come by a touch.
    fn read(&mut self, number: u64, page: u64, around: Range<u64>) {
        let Some(object) = self.by_number.get(&number) else { return };
        let pages = match object.size {
            _ if object.anonymous => page..page + 1,
            // It grew since.
            size if page >= size => around,
            size => around.start..around.end.min(size),
        };
        self.add(number, pages);
    }

    /// A lock brings these pages in, as far as there are so many.
    fn lock(&mut self, number: u64, pages: Range<u64>) {
        let size = self.by_number.get(&number).map_or(0, |object| object.size);
        let end = if size == 0 { pages.end } else { pages.end.min(size) };
        if pages.start < end {
            self.add(number, pages.start..end);
        }
    }

    /// A hole is punched into an object.
    fn remove(&mut self, number: u64, pages: Range<u64>) {
        let Some(object) = self.by_number.get_mut(&number) else { return };
        let before = object.pages.len();
        object.pages.remove(pages);
        self.pages -= u128::from(before - object.pages.len());
    }
}

fn bytes_of(pages: u128) -> u64 {
    (pages.min(MOST_PAGES) as u64) << PAGE_SHIFT
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
        bytes_of(self.objects.pages)
    }

    /// Of that, what no process maps: whether it still exists is not recorded.
    pub(super) fn unmapped_bytes(&self) -> u64 {
        bytes_of(self.objects.unmapped)
    }

    /// The shared memory that address space number `number` can have mapped, in bytes, and how many parts and
    /// runs were looked at for it. If there are more of them than `most`, it is not known.
    pub(super) fn mapped_bytes(&self, number: usize, most: u64) -> (Option<u64>, u64) {
        let (mut sum, mut looks) = (0, 0);
        for (start, part) in self.spaces.get(number).into_iter().flatten() {
            let pages = part.page..part.page + ((part.end - start) >> PAGE_SHIFT);
            let object = self.objects.by_number.get(&part.object).into_iter();
            let runs = object.flat_map(|object| object.pages.counts(pages.clone()));
            // Each part may have all runs of an object.
            for found in iter::once(0).chain(runs) {
                looks += 1;
                if looks > most {
                    return (None, looks);
                }
                sum += u128::from(found);
            }
        }
        (Some(bytes_of(sum)), looks)
    }

    /// Whether the file of this number is shared memory.
    pub(super) fn has(&self, file: u64) -> bool {
        self.objects.by_number.contains_key(&file)
    }

    /// Address space number `number` touched `addr`.
    #[inline]
    pub(super) fn touch(&mut self, number: usize, addr: u64, access: Access) {
        if self.spaces.get(number).is_some_and(|parts| !parts.is_empty()) {
            self.touch_one_of_some(number, addr, access);
        }
    }

    fn touch_one_of_some(&mut self, number: usize, addr: u64, access: Access) {
        let Some(parts) = self.spaces.get(number) else { return };
        let Some((start, part)) = parts.range(..=addr).next_back().filter(|(_, part)| addr < part.end) else {
            return;
        };
        let page_of = |addr: u64| part.page + ((addr - start) >> PAGE_SHIFT);
        let page = page_of(addr);
        if access == Access::Write {
            return self.objects.add(part.object, page..page + 1);
        }
        let from = (addr - addr % AROUND).max(*start);
        let table_end = (addr - addr % TABLE).saturating_add(TABLE);
        let to = from.saturating_add(AROUND).min(part.end).min(table_end);
        self.objects.read(part.object, page, page_of(from)..page_of(to));
    }

    /// The child has what the parent maps. Nothing is locked in it.
    pub(super) fn fork(&mut self, parent: usize, child: usize) {
        let Some(parts) = self.spaces.get(parent).filter(|parts| !parts.is_empty()) else { return };
        let mut parts = parts.clone();
        for part in parts.values_mut() {
            self.objects.mapped(part.object);
            part.locked = false;
        }
        *self.parts_of(child) = parts;
    }

    /// The address space is gone.
    pub(super) fn leave(&mut self, number: usize) {
        self.lock_new.remove(&number);
        let parts = self.spaces.get_mut(number).map(std::mem::take).unwrap_or_default();
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
                let object = files.segment(first & 0xffff_ffff);
                let locked = self.lock_new.contains(&number);
                let new = New { object, page: 0, size: u64::MAX, accessible: true, locked, anonymous: false };
                self.put(number, &pages_of(start, bytes), new);
                self.populate_locked(number, &pages_of(start, bytes));
            }
            libc::SYS_shmdt => self.detach(number, first),
            libc::SYS_mprotect | libc::SYS_pkey_mprotect => {
                self.change(number, &range, |part| part.accessible = third & PROTECTIONS != 0);
            }
            libc::SYS_mlock => self.lock(number, &range, true),
            libc::SYS_mlock2 => self.lock(number, &range, third & MLOCK_ONFAULT == 0),
            libc::SYS_munlock => self.change(number, &range, |part| part.locked = false),
            libc::SYS_mlockall => {
                let has = |flag: i32| first & flag as u64 != 0;
                let now = !has(libc::MCL_ONFAULT);
                self.locks_new(number, has(libc::MCL_FUTURE) && now);
                if has(libc::MCL_CURRENT) {
                    self.lock(number, &(0..u64::MAX), now);
                }
            }
            libc::SYS_munlockall => {
                self.locks_new(number, false);
                self.change(number, &(0..u64::MAX), |part| part.locked = false);
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
        let [_, len, protection, flags, _, offset] = call.args;
        let range = pages_of(call.result as u64, len);
        let has = |flag: i32| flags & flag as u64 != 0;
        let shared = matches!(flags as i32 & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
        let size = match call.file() {
            Some(file) if file.kind == FileKind::Memory => file.size.div_ceil(PAGE_SIZE),
            _ => u64::MAX,
        };
        let object = match call.file() {
            // Huge pages have a pool of their own.
            _ if has(libc::MAP_HUGETLB) => None,
            Some(file) if file.kind == FileKind::Memory => {
                Some((files.id(file.device, file.inode, &file.name), offset >> PAGE_SHIFT, false))
            }
            _ if !shared => None,
            Some(file) if file.kind == FileKind::Zero => Some((files.fresh(), 0, true)),
            None if has(libc::MAP_ANONYMOUS) => Some((files.fresh(), 0, true)),
            _ => None,
        };
        let Some((object, page, anonymous)) = object else { return self.clear(number, &range) };
        let accessible = protection & PROTECTIONS != 0;
        let locked = has(libc::MAP_LOCKED) || self.lock_new.contains(&number);
        self.put(number, &range, New { object, page, size, accessible, locked, anonymous });
        if has(libc::MAP_POPULATE) || locked {
            self.populate(number, &pages_of(range.start, populated_bytes(call)));
        }
    }

    fn put(&mut self, number: usize, range: &Range<u64>, new: New) {
        self.clear(number, range);
        if range.is_empty() {
            return;
        }
        let New { object, page, size, accessible, locked, anonymous } = new;
        let known = self.objects.by_number.entry(object);
        let known = known.or_insert_with(|| Object { anonymous, ..Object::default() });
        known.size = known.size.max(size);
        self.objects.mapped(object);
        let part = Part { end: range.end, object, page, accessible, locked };
        self.parts_of(number).insert(range.start, part);
    }

    fn parts_of(&mut self, number: usize) -> &mut Parts {
        if number >= self.spaces.len() {
            self.spaces.resize_with(number + 1, Parts::new);
        }
        &mut self.spaces[number]
    }

    /// Changes what is mapped in `range`.
    fn change(&mut self, number: usize, range: &Range<u64>, change: impl Fn(&mut Part)) {
        let Some(parts) = self.spaces.get_mut(number) else { return };
        for (start, cut) in within(parts, range) {
            let mut part = cut;
            change(&mut part);
            if (part.accessible, part.locked) == (cut.accessible, cut.locked) {
                continue;
            }
            // So that it does not end in between.
            self.objects.mapped(part.object);
            clear(parts, &mut self.objects, &(start..cut.end));
            parts.insert(start, part);
        }
    }

    fn lock(&mut self, number: usize, range: &Range<u64>, now: bool) {
        self.change(number, range, |part| part.locked = now);
        if now {
            self.populate_locked(number, range);
        }
    }

    fn locks_new(&mut self, number: usize, locks: bool) {
        if locks {
            self.lock_new.insert(number);
        } else {
            self.lock_new.remove(&number);
        }
    }

    fn clear(&mut self, number: usize, range: &Range<u64>) {
        if let Some(parts) = self.spaces.get_mut(number) {
            clear(parts, &mut self.objects, range);
        }
    }

    /// `mremap`: what is mapped at the old place is at the new one, as long as that.
    fn remap(&mut self, number: usize, call: &Call) {
        let [start, old_len, new_len, flags, ..] = call.args;
        let (old, new) = (pages_of(start, old_len), pages_of(call.result as u64, new_len));
        let Some(parts) = self.spaces.get(number) else { return };
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
        let Part { object, page, accessible, locked, .. } = part;
        self.put(number, &new, New { object, page, size: 0, accessible, locked, anonymous: false });
        self.objects.unmapped(part.object);
        // What it had moves with it, whether that was there or not.
        let had = old.end.saturating_sub(old.start);
        self.populate_locked(number, &(new.start.saturating_add(had)..new.end));
    }

    /// `shmdt`: what remains of the segment that was attached at `addr`.
    fn detach(&mut self, number: usize, addr: u64) {
        let Some(parts) = self.spaces.get(number) else { return };
        let attached =
            |(start, part): &(&u64, &Part)| start.checked_sub(part.page << PAGE_SHIFT) == Some(addr);
        let found: Vec<(u64, Part)> =
            parts.range(addr..).filter(attached).map(|(&start, part)| (start, *part)).collect();
        let Some((_, segment)) = found.first().copied() else { return };
        for (start, part) in found.into_iter().filter(|(_, part)| part.object == segment.object) {
            self.clear(number, &(start..part.end));
        }
    }

    /// The pages that `range` maps of objects.
    fn of_range(&self, number: usize, range: &Range<u64>) -> Vec<(Part, Range<u64>)> {
        let parts = self.spaces.get(number).map(|parts| within(parts, range)).unwrap_or_default();
        let pages =
            |(start, part): (u64, Part)| (part, part.page..part.page + ((part.end - start) >> PAGE_SHIFT));
        parts.into_iter().map(pages).collect()
    }

    /// Brings in what may be accessed in `range`, which was all there.
    fn populate(&mut self, number: usize, range: &Range<u64>) {
        for (part, pages) in self.of_range(number, range).into_iter().filter(|(part, _)| part.accessible) {
            self.objects.add(part.object, pages);
        }
    }

    /// Brings in what is locked in `range` and may be accessed.
    fn populate_locked(&mut self, number: usize, range: &Range<u64>) {
        for (part, pages) in self.of_range(number, range) {
            if part.accessible && part.locked {
                self.objects.lock(part.object, pages);
            }
        }
    }

    fn punch(&mut self, number: usize, range: &Range<u64>) {
        for (part, pages) in self.of_range(number, range) {
            self.objects.remove(part.object, pages);
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

        fn lock_all(&mut self, number: usize, flags: i32) {
            self.call(number, libc::SYS_mlockall, [flags as u64, 0, 0, 0, 0, 0], 0, CallDetail::None);
        }

        fn unmap(&mut self, number: usize, addr: u64, len: u64) {
            self.call(number, libc::SYS_munmap, [addr, len, 0, 0, 0, 0], 0, CallDetail::None);
        }

        fn touch(&mut self, number: usize, addr: u64, len: u64) {
            let pages = (addr..addr + len).step_by(PAGE_SIZE as usize);
            pages.for_each(|addr| self.0.touch(number, addr, Access::Write));
        }

        fn read(&mut self, number: usize, addr: u64) {
            self.0.touch(number, addr, Access::Read);
        }

        /// What Linux could have mapped in it.
        fn mapped_pages(&self, number: usize) -> u64 {
            self.0.mapped_bytes(number, u64::MAX).0.unwrap() / PAGE_SIZE
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

    /// A file in memory that was filled by write(2) has a page fault for 16 pages.
    #[test]
    fn a_read_of_a_file_in_memory_counts_what_is_mapped_around_it() {
        let mut programs = Programs::default();
        // Its pages 1 to 128, at an address that is 3 pages beyond a border of 64 KiB.
        let start = BASE + 3 * PAGE_SIZE;
        programs.map_memory(0, start, MIB / 2, 7);
        programs.touch(0, start + 40 * PAGE_SIZE, PAGE_SIZE);
        assert_eq!(programs.pages(), 1, "a write is one page");
        programs.read(0, start);
        assert_eq!(programs.pages(), 1 + 16, "from the mapping's start on");
        programs.read(0, start + 20 * PAGE_SIZE);
        assert_eq!(programs.pages(), 1 + 16 + 13, "pages 13 to 28, of which 3 were there");
        programs.read(0, start + 127 * PAGE_SIZE);
        assert_eq!(programs.pages(), 1 + 16 + 13 + 3, "to the mapping's end");
        assert_eq!(programs.mapped_pages(0), programs.pages());
        // To the end of the file, as far as that is known.
        let map = |programs: &mut Programs, addr, inode| {
            let facts =
                FileFacts { kind: FileKind::Memory, inode, size: 5 * PAGE_SIZE, ..FileFacts::default() };
            let args = [addr, MIB, 1, libc::MAP_PRIVATE as u64, 3, 0];
            programs.call(1, libc::SYS_mmap, args, addr, CallDetail::File(Arc::new(facts)));
        };
        map(&mut programs, BASE, 8);
        programs.read(1, BASE + PAGE_SIZE);
        assert_eq!(programs.mapped_pages(1), 5, "a private mapping has its pages, too");
        programs.read(1, BASE + 20 * PAGE_SIZE);
        assert_eq!(programs.mapped_pages(1), 5 + 16, "it grew since");
        // A private write copies a page that the file has then.
        map(&mut programs, BASE + MIB, 9);
        programs.touch(1, BASE + MIB, 2 * PAGE_SIZE);
        assert_eq!(programs.mapped_pages(1), 5 + 16 + 2);
        // What is only shared comes in by its touches.
        programs.map(2, BASE, MIB, ANONYMOUS);
        programs.read(2, BASE);
        assert_eq!(programs.mapped_pages(2), 1);
    }

    /// Each mapping of a file may have all runs of its pages.
    #[test]
    fn a_file_of_many_runs_that_is_mapped_often_is_looked_at_in_part() {
        const RUNS: u64 = 1000;
        let len = 2 * RUNS * PAGE_SIZE;
        let mut programs = Programs::default();
        (0..RUNS).for_each(|part| programs.map_memory(0, BASE + part * len, len, 7));
        (0..RUNS).for_each(|run| programs.touch(0, BASE + 2 * run * PAGE_SIZE, PAGE_SIZE));
        let all = RUNS * (1 + RUNS);
        assert_eq!(programs.0.mapped_bytes(0, all), (Some(RUNS * RUNS * PAGE_SIZE), all));
        assert_eq!(programs.0.mapped_bytes(0, all - 1), (None, all));
        assert_eq!(programs.0.mapped_bytes(0, 5000), (None, 5001));
        assert_eq!(programs.0.mapped_bytes(0, 0), (None, 1));
        // Of what maps none there is nothing to look at.
        assert_eq!(programs.0.mapped_bytes(1, 0), (Some(0), 0));
    }

    /// Reservations are locked with all else, and stay empty.
    #[test]
    fn only_what_may_be_accessed_is_populated() {
        let mut programs = Programs::default();
        let none = [BASE, 1 << 38, 0, (ANONYMOUS | libc::MAP_POPULATE) as u64, u64::MAX, 0];
        programs.call(0, libc::SYS_mmap, none, BASE, CallDetail::None);
        assert_eq!(programs.pages(), 0);
        programs.lock_all(0, libc::MCL_CURRENT);
        programs.advise(BASE, MIB, libc::MADV_POPULATE_READ);
        assert_eq!(programs.pages(), 0);
        let opened = [BASE + MIB, 2 * MIB, 1, 0, 0, 0];
        programs.call(0, libc::SYS_mprotect, opened, 0, CallDetail::None);
        assert_eq!(programs.pages(), 0, "only a private one is copied by that");
        programs.lock_all(0, libc::MCL_CURRENT);
        assert_eq!(programs.pages(), 512);
        // Nor what lies beyond the end of a file in memory: a database maps more than it has.
        programs.unmap(0, BASE, 1 << 38);
        programs.map_memory(0, BASE, 1 << 30, 7);
        programs.lock_all(0, libc::MCL_CURRENT);
        assert_eq!(programs.pages(), 64 * 256 - 1, "from its second page on");
    }

    /// A file in memory grows after it was mapped, which is no recorded call.
    #[test]
    fn what_a_file_grew_by_is_populated_where_something_tells_of_it() {
        let map = |programs: &mut Programs, number, inode, size| {
            let facts = FileFacts { kind: FileKind::Memory, inode, size, ..FileFacts::default() };
            let args = [BASE, 4 * MIB, 3, libc::MAP_SHARED as u64, 3, 0];
            programs.call(number, libc::SYS_mmap, args, BASE, CallDetail::File(Arc::new(facts)));
        };
        let mut programs = Programs::default();
        map(&mut programs, 0, 7, 0);
        programs.advise(BASE, MIB, libc::MADV_POPULATE_WRITE);
        assert_eq!(programs.pages(), 256);
        // Another process maps it when it is longer.
        map(&mut programs, 1, 7, 2 * MIB);
        programs.lock_all(0, libc::MCL_CURRENT);
        assert_eq!(programs.pages(), 512);
        programs.touch(1, BASE + 3 * MIB - PAGE_SIZE, PAGE_SIZE);
        programs.lock_all(0, libc::MCL_CURRENT);
        assert_eq!(programs.pages(), 768);
        // Of this one nothing is known.
        map(&mut programs, 2, 8, 0);
        programs.lock_all(2, libc::MCL_CURRENT);
        assert_eq!(programs.pages(), 768 + 1024);
    }

    #[test]
    fn what_is_mapped_after_all_was_locked_is_populated() {
        let mut programs = Programs::default();
        programs.map(0, BASE, MIB, ANONYMOUS);
        programs.lock_all(0, libc::MCL_FUTURE);
        assert_eq!(programs.pages(), 0);
        programs.map(0, BASE + 2 * MIB, MIB, ANONYMOUS);
        assert_eq!(programs.pages(), 256);
        let detail = CallDetail::Mapped { start: BASE + 4 * MIB, bytes: MIB };
        programs.call(0, libc::SYS_shmat, [5, 0, 0, 0, 0, 0], BASE + 4 * MIB, detail);
        assert_eq!(programs.pages(), 512);
        // It grows; what was not locked when it was mapped does not come in.
        let grown = [BASE + 2 * MIB, MIB, 2 * MIB, 1, 0, 0];
        programs.call(0, libc::SYS_mremap, grown, BASE + 8 * MIB, CallDetail::None);
        assert_eq!(programs.pages(), 768);
        programs.call(0, libc::SYS_mremap, [BASE, MIB, 2 * MIB, 1, 0, 0], BASE, CallDetail::None);
        assert_eq!(programs.pages(), 768);
        // A child locks nothing, nor does the program after these.
        programs.0.fork(0, 1);
        programs.map(1, BASE + 16 * MIB, MIB, ANONYMOUS);
        for (call, first) in
            [(libc::SYS_mlockall, libc::MCL_FUTURE | libc::MCL_ONFAULT), (libc::SYS_munlockall, 0)]
        {
            programs.lock_all(0, libc::MCL_FUTURE);
            programs.call(0, call, [first as u64, 0, 0, 0, 0, 0], 0, CallDetail::None);
            programs.map(0, BASE + 16 * MIB, MIB, ANONYMOUS);
        }
        programs.lock_all(0, libc::MCL_FUTURE);
        programs.0.leave(0);
        programs.map(0, BASE, MIB, ANONYMOUS);
        assert_eq!(programs.pages(), 768);
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
        assert_eq!((programs.pages(), programs.0.spaces[1].len()), (512, 1));
    }
}
