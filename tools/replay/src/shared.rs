//! Shared memory of a replay: which pages of it exist, by touches.
//!
//! Each mapping of shared memory has pages of its own in a replay, which count as those of files. Linux can
//! drop pages of files, but shared memory it can only swap, so that a limit has to hold it. Therefore its
//! pages are counted here, beside the machine: each page of an object once, whichever mappings and processes
//! touch it. Of a file in memory that changed since the recording began all that it had when it was mapped
//! last counts, too. Shared anonymous memory ends with its last mapping. A file in memory and a System V
//! segment stay until the end of the recording, which does not show their last descriptor.

mod mapped;
#[cfg(test)]
mod tests;

use super::args::{Lock, Locking, PROTECTIONS, is_shared, populates};
use super::around::around;
use super::call::populated_bytes;
use super::files::FileIds;
use super::overlap::pages_of;
use super::page_set::PageSet;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE};
use quire_trace::event::{Access, Call, CallDetail, FileKind, HeldInMemory};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

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
    held: Option<HeldInMemory>,
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
    /// What it had when it was mapped last, less what was punched out since. `None`: not known.
    held: Option<HeldInMemory>,
}

impl Object {
    /// Its pages that may be the programs': those that were touched, and what else a file had that changed
    /// since the recording began, as by `write` or `fallocate`.
    fn count(&self) -> u64 {
        let held = self.held.filter(|held| held.changed).map_or(0, |held| held.bytes >> PAGE_SHIFT);
        self.pages.len().max(held)
    }

    /// Nothing that is known keeps it: a file that was there before is another's.
    fn may_be_gone(&self) -> bool {
        self.parts == 0 && self.held.is_none_or(|held| held.changed)
    }
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
    /// Changes an object, and the sums with it.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut Object)) {
        let Some(object) = self.by_number.get_mut(&number) else { return };
        let counts = |object: &Object| {
            let pages = u128::from(object.count());
            (pages, if object.may_be_gone() { pages } else { 0 })
        };
        let (pages, unmapped) = counts(object);
        change(object);
        let now = counts(object);
        self.pages = self.pages - pages + now.0;
        self.unmapped = self.unmapped - unmapped + now.1;
    }

    fn mapped(&mut self, number: u64) {
        self.change(number, |object| object.parts += 1);
    }

    fn unmapped(&mut self, number: u64) {
        self.change(number, |object| object.parts -= 1);
        let Some(object) = self.by_number.get(&number) else { return };
        if object.parts == 0 && object.anonymous {
            let pages = u128::from(object.count());
            self.pages -= pages;
            self.unmapped -= pages;
            self.by_number.remove(&number);
        }
    }

    /// These pages of an object exist.
    fn add(&mut self, number: u64, pages: Range<u64>) {
        self.change(number, |object| {
            object.size = object.size.max(pages.end);
            object.pages.add(pages);
        });
    }

    /// What a file has that is mapped now.
    fn hold(&mut self, number: u64, held: HeldInMemory) {
        self.change(number, |object| {
            // It is the programs' once they have changed it.
            let changed = held.changed || object.held.is_some_and(|before| before.changed);
            object.held = Some(HeldInMemory { changed, ..held });
        });
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
        self.change(number, |object| {
            let bytes = (pages.end - pages.start) << PAGE_SHIFT;
            if let Some(held) = &mut object.held {
                held.bytes = held.bytes.saturating_sub(bytes);
            }
            object.pages.remove(pages);
        });
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
        let around = around(addr, &(*start..part.end));
        self.objects.read(part.object, page, page_of(around.start)..page_of(around.end));
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
    pub(super) fn call(&mut self, number: usize, call: &Call, files: &mut FileIds<'_>) {
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
                let (page, size, anonymous) = (0, u64::MAX, false);
                let new = New { object, page, size, accessible: true, locked, anonymous, held: None };
                self.put(number, &pages_of(start, bytes), new);
                self.populate_locked(number, &pages_of(start, bytes));
            }
            libc::SYS_shmdt => self.detach(number, first),
            libc::SYS_mprotect | libc::SYS_pkey_mprotect => {
                self.change(number, &range, |part| part.accessible = third & PROTECTIONS != 0);
            }
            libc::SYS_madvise if populates(third) => self.populate(number, &range),
            libc::SYS_madvise if third as i32 == libc::MADV_REMOVE => self.punch(number, &range),
            _ => {
                if let Some(locking) = Locking::of(call, &range) {
                    self.lock(number, locking);
                }
            }
        }
    }

    fn map(&mut self, number: usize, call: &Call, files: &mut FileIds<'_>) {
        let [_, len, protection, flags, _, offset] = call.args;
        let range = pages_of(call.result as u64, len);
        let has = |flag: i32| flags & flag as u64 != 0;
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
            _ if !is_shared(flags) => None,
            Some(file) if file.kind == FileKind::Zero => Some((files.fresh(), 0, true)),
            None if has(libc::MAP_ANONYMOUS) => Some((files.fresh(), 0, true)),
            _ => None,
        };
        let Some((object, page, anonymous)) = object else { return self.clear(number, &range) };
        let accessible = protection & PROTECTIONS != 0;
        let locked = has(libc::MAP_LOCKED) || self.lock_new.contains(&number);
        let held = call.file().and_then(|file| file.held).filter(|_| !anonymous);
        self.put(number, &range, New { object, page, size, accessible, locked, anonymous, held });
        if has(libc::MAP_POPULATE) || locked {
            self.populate(number, &pages_of(range.start, populated_bytes(call)));
        }
    }

    fn put(&mut self, number: usize, range: &Range<u64>, new: New) {
        self.clear(number, range);
        if range.is_empty() {
            return;
        }
        let New { object, page, size, accessible, locked, anonymous, held } = new;
        let known = self.objects.by_number.entry(object);
        let known = known.or_insert_with(|| Object { anonymous, ..Object::default() });
        known.size = known.size.max(size);
        self.objects.mapped(object);
        if let Some(held) = held {
            self.objects.hold(object, held);
        }
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

    fn lock(&mut self, number: usize, Locking { future, mapped }: Locking) {
        match future {
            Some(true) => _ = self.lock_new.insert(number),
            Some(false) => _ = self.lock_new.remove(&number),
            None => {}
        }
        if let Some((range, lock)) = mapped {
            self.change(number, &range, |part| part.locked = lock == Lock::Now);
            if lock == Lock::Now {
                self.populate_locked(number, &range);
            }
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
        let (size, anonymous, held) = (0, false, None);
        self.put(number, &new, New { object, page, size, accessible, locked, anonymous, held });
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
