//! What calls do to the mappings of a plan, and what they bring in.

use super::Needs;
use super::budget::Budget;
use super::file_pages::FileAt;
use super::layout::{Advice, Kind, Layout, USER_END, pages_of};
use super::space::Image;
use crate::args::{Lock, Locking, PROTECTIONS, is_shared};
use crate::call::populated_bytes;
use crate::failed::{Refusal, refusal};
use quire_trace::event::{Call, CallDetail, FileEvent, FileKind, SYS_MAP_SHADOW_STACK, TaskId, TmpfsHuge};
use std::ops::Range;

const MADV_DONTNEED_LOCKED: i32 = 24;
const MADV_GUARD_INSTALL: i32 = 102;
/// Guards that are installed in the time in which a page comes in.
const GUARDS_OF_PAGE: u64 = 4;
/// Pages about which mincore can tell in the time in which one comes in.
const PAGES_OF_VECTOR: u64 = 32;

impl Needs {
    pub(super) fn call(&mut self, task: TaskId, call: &Call) {
        let ([first, second, ..], refusal) = (call.args, refusal(call));
        // Advice is followed as far as there are mappings.
        let advises = i64::from(call.number) == libc::SYS_madvise;
        // brk has no errors.
        let succeeds =
            call.errno().is_none_or(|errno| advises && (errno != libc::EINVAL || outlives_refusal(call)))
                || i64::from(call.number) == libc::SYS_brk;
        let follows = succeeds && !is_impossible(call);
        let collapses = self.thp_turned_off && is_collapse(call);
        if follows || looks(call) {
            let file = if follows { self.file_of(call) } else { None };
            self.change(task, |image, budget| {
                look(image, budget, call)
                    && (!follows || follow(image, budget, call, file))
                    && (follows || change_in_part(image, budget, call))
                    && refusal
                        .is_none_or(|refusal| bring_in_up_to(refusal, image, budget, named(first, second)))
                    && (!collapses || image.fill_large(budget, named(first, second)))
            });
        }
        if follows && advises && call.args[2] as i32 == libc::MADV_REMOVE {
            self.remove(task, &named(first, second));
        }
    }

    /// What `call`, which succeeds, maps of a file whose size is known, or of shared memory.
    fn file_of(&mut self, call: &Call) -> Option<FileAt> {
        let [first, len, _, flags, _, offset] = call.args;
        let is_unnamed = is_shared(flags) && flags & libc::MAP_HUGETLB as u64 == 0;
        let (place, size, offset, start) = match (i64::from(call.number), call.file(), &call.detail) {
            (libc::SYS_shmat, _, &CallDetail::Mapped { start, bytes }) => {
                ((FileEvent::SEGMENTS, first & 0xffff_ffff), Some(bytes), 0, start)
            }
            (libc::SYS_mmap, Some(file), _) if file.kind == FileKind::Memory => {
                self.shared.large_mounts |= file.mount_huge.is_some_and(|huge| huge != TmpfsHuge::Never);
                ((file.device, file.inode), Some(file.size), offset, call.result as u64)
            }
            (libc::SYS_mmap, Some(file), _) if file.kind == FileKind::Regular => {
                ((file.device, file.inode), None, offset, call.result as u64)
            }
            (libc::SYS_mmap, file, _) if is_unnamed => {
                let zeros = file.is_some_and(|file| file.kind == FileKind::Zero);
                if !zeros && flags & libc::MAP_ANONYMOUS as u64 == 0 {
                    return None;
                }
                let made = self.files.unnamed(&mut self.budget, len.div_ceil(4096), call.result as u64);
                self.check(made.is_some());
                return made;
            }
            _ => return None,
        };
        if let Some(bytes) = size {
            self.memory_file(place, bytes);
        }
        self.files.at(place, offset, start)
    }
}

/// Whether a call asks for huge pages and is refused, as each is where the recorder keeps them off. In a
/// replay it succeeds under settings that have them.
fn is_collapse(call: &Call) -> bool {
    i64::from(call.number) == libc::SYS_madvise
        && call.args[2] as i32 == libc::MADV_COLLAPSE
        && call.errno() == Some(libc::EINVAL)
}

/// Brings in what a call can bring in before it fails at such a mapping. `false` if that is too much.
fn bring_in_up_to(refusal: Refusal, image: &mut Image, budget: &mut Budget, range: Range<u64>) -> bool {
    let is_refused = |kind: Kind| {
        // A file may end before its mapping.
        kind.refuses
            || kind.file.is_some()
            || match refusal {
                Refusal::Inaccessible => !kind.accessible,
                Refusal::Unreadable => !kind.readable,
                Refusal::Unwritable => !kind.writable,
            }
    };
    let fails = image.layout.within(range.clone()).any(|(_, kind)| is_refused(kind));
    !fails || image.populate(budget, range, refusal == Refusal::Unreadable)
}

/// Whether advice that Linux refused (EINVAL) is followed: it has advised what lies before a mapping that it
/// refused; and where Linux did not know the advice, a replay does. The plan has more then, not less.
fn outlives_refusal(call: &Call) -> bool {
    matches!(call.args[2] as i32, libc::MADV_HUGEPAGE | MADV_GUARD_INSTALL)
}

/// What a call that failed has changed before it did. `false` if there is too much to look at.
fn change_in_part(image: &mut Image, budget: &mut Budget, call: &Call) -> bool {
    let [first, second, third, ..] = call.args;
    let range = named(first, second);
    match (i64::from(call.number), call.errno()) {
        (libc::SYS_mprotect | libc::SYS_pkey_mprotect, errno) if errno != Some(libc::EINVAL) => {
            protect(image, budget, range, either, third)
        }
        (libc::SYS_mlock | libc::SYS_mlock2, Some(libc::ENOMEM)) if refusal(call).is_some() => {
            let end = end_of_mapped(&image.layout, &range);
            let is_refused = |kind: Kind| kind.refuses || !kind.accessible;
            // Without such a mapping it was a limit, which is looked at first.
            let fails =
                end < range.end || image.layout.within(range.clone()).any(|(_, kind)| is_refused(kind));
            let locked = |kind| Kind { locked: true, ..kind };
            !fails || image.layout.change(budget, range.start..end, locked).is_some()
        }
        _ => true,
    }
}

/// Where the first hole of `range` begins. That this looks at its mappings was charged before.
fn end_of_mapped(layout: &Layout, range: &Range<u64>) -> u64 {
    layout
        .within(range.clone())
        .fold(range.start, |end, (part, _)| if part.start == end { part.end } else { end })
}

/// What allows as much as the one or the other, where it is not known which it is.
fn either(before: Kind, after: Kind) -> Kind {
    Kind {
        accessible: before.accessible || after.accessible,
        readable: before.readable || after.readable,
        writable: before.writable || after.writable,
        refuses: true,
        ..before
    }
}

/// Changes what is allowed in `range`; `to` makes a kind of what it was and of what the call wants.
fn protect(
    image: &mut Image,
    budget: &mut Budget,
    range: Range<u64>,
    to: impl Fn(Kind, Kind) -> Kind,
    protection: u64,
) -> bool {
    let may = |access: i32| protection & access as u64 != 0;
    let changed = |kind| {
        let wanted = Kind {
            accessible: protection & PROTECTIONS != 0,
            readable: may(libc::PROT_READ),
            writable: may(libc::PROT_WRITE),
            ..kind
        };
        to(kind, wanted)
    };
    let Some(parts) = image.layout.change(budget, range, changed) else { return false };
    let opened = |(_, before, after): &&(_, Kind, Kind)| before.locked && !before.writable && after.writable;
    let opened: Vec<_> = parts.iter().filter(opened).map(|(part, ..)| part.clone()).collect();
    opened.into_iter().all(|part| image.populate(budget, part, false))
}

/// Whether the words of a call are refused whatever is mapped. Then a replay does nothing, also where a file
/// says that the call succeeded.
fn is_impossible(call: &Call) -> bool {
    let [first, second, ..] = call.args;
    let off_page = !first.is_multiple_of(4096);
    match i64::from(call.number) {
        libc::SYS_munmap => off_page || cannot_be_mapped(first, second),
        libc::SYS_mmap => {
            let place = call.result as u64;
            !place.is_multiple_of(4096) || cannot_be_mapped(place, second)
        }
        libc::SYS_mprotect | libc::SYS_pkey_mprotect | libc::SYS_madvise => {
            let len = second.checked_next_multiple_of(4096);
            off_page || len.is_none_or(|len| first.checked_add(len).is_none())
        }
        _ => false,
    }
}

/// Whether no mapping is so long, or none begins there and is.
fn cannot_be_mapped(start: u64, len: u64) -> bool {
    len == 0 || len > USER_END || start > USER_END - len
}

/// Whether a call looks at mappings or page tables of a range that it names, also one that fails in the end.
fn looks(call: &Call) -> bool {
    matches!(
        i64::from(call.number),
        libc::SYS_mprotect
            | libc::SYS_pkey_mprotect
            | libc::SYS_mlock
            | libc::SYS_mlock2
            | libc::SYS_munlock
            | libc::SYS_mlockall
            | libc::SYS_munlockall
            | libc::SYS_madvise
            | libc::SYS_msync
            | libc::SYS_mincore
            | libc::SYS_mremap
    )
}

/// What it costs that a call looks at its range. `false` if there is too much.
fn look(image: &mut Image, budget: &mut Budget, call: &Call) -> bool {
    let [first, second, third, ..] = call.args;
    let range = named(first, second);
    match i64::from(call.number) {
        libc::SYS_mlockall | libc::SYS_munlockall => image.walk(budget, &(0..USER_END)),
        // It can end with a look at all mappings.
        libc::SYS_madvise if third as i32 == libc::MADV_COLLAPSE => image.walk(budget, &(0..USER_END)),
        // A byte for each page, resident or not. It writes them to memory of the program, which comes in if
        // no touch of the recording did that.
        libc::SYS_mincore => {
            let mapped = image.layout.within(range.clone()).map(|(part, _)| part.end - part.start);
            let pages = mapped.sum::<u64>() >> 12;
            budget.bring_in(pages / PAGES_OF_VECTOR)
                && image.walk(budget, &range)
                && image.populate(budget, named(third, pages), false)
        }
        _ if looks(call) => image.walk(budget, &range),
        libc::SYS_process_madvise => {
            let CallDetail::Ranges(ranges) = &call.detail else { return true };
            ranges.iter().all(|&(start, len)| image.walk(budget, &named(start, len)))
        }
        // These can look for a mapping by its file.
        libc::SYS_shmdt | libc::SYS_io_destroy => budget.mappings(image.layout.len() as u64),
        _ => true,
    }
}

/// The range that a call names by address and length: as the kernel has it, a length that wraps around is
/// none.
fn named(start: u64, len: u64) -> Range<u64> {
    let offset = start & 4095;
    let Some(len) = len.checked_add(offset).and_then(|len| len.checked_next_multiple_of(4096)) else {
        return start..start;
    };
    pages_of(start & !4095, len)
}

/// Makes a call that succeeded. `false` if there is too much to look at.
fn follow(image: &mut Image, budget: &mut Budget, call: &Call, file: Option<FileAt>) -> bool {
    let [first, second, third, fourth, ..] = call.args;
    let range = named(first, second);
    match i64::from(call.number) {
        libc::SYS_mmap => map(image, budget, call, file),
        libc::SYS_munmap => unmap(image, budget, range),
        libc::SYS_mremap => remap(image, budget, call),
        libc::SYS_brk => {
            // A result that no heap has leaves what was asked for.
            let is_end = |brk: &u64| (image.start_brk..=USER_END).contains(brk);
            let brk = [call.result as u64, first].into_iter().find(is_end);
            brk.is_none_or(|brk| set_brk(image, budget, brk))
        }
        libc::SYS_mprotect | libc::SYS_pkey_mprotect => {
            // At a hole it fails, whatever the recording says.
            let whole = end_of_mapped(&image.layout, &range) == range.end;
            protect(image, budget, range, if whole { |_, after| after } else { either }, third)
        }
        libc::SYS_madvise => advise(image, budget, range, third as i32),
        libc::SYS_process_madvise
            if third as i32 == libc::MADV_COLLAPSE || fourth as i32 == libc::MADV_COLLAPSE =>
        {
            let CallDetail::Ranges(ranges) = &call.detail else { return true };
            ranges.iter().all(|&(start, len)| image.populate(budget, named(start, len), false))
        }
        libc::SYS_shmat | libc::SYS_io_setup => {
            let CallDetail::Mapped { start, bytes } = call.detail else { return true };
            let kind = Kind { anonymous: false, shared: true, file, ..Kind::HEAP };
            put(image, budget, named(start, bytes), kind, None)
        }
        libc::SYS_shmdt => match image.layout.at(first) {
            Some((segment, kind)) if kind.shared => unmap(image, budget, segment),
            _ => true,
        },
        libc::SYS_remap_file_pages => image.populate(budget, range, false),
        SYS_MAP_SHADOW_STACK => {
            let kind = Kind { writable: false, ..Kind::HEAP };
            put(image, budget, named(call.result as u64, second), kind, None)
        }
        // It maps the vDSO at a place that is not known.
        libc::SYS_arch_prctl => {
            image.incomplete = true;
            true
        }
        _ => Locking::of(call, &range).is_none_or(|locking| lock(image, budget, locking)),
    }
}

/// Locks memory or unlocks it, and brings in what that does. `false` if it is too much.
fn lock(image: &mut Image, budget: &mut Budget, Locking { future, mapped }: Locking) -> bool {
    image.locks_new = future.unwrap_or(image.locks_new);
    let Some((range, lock)) = mapped else { return true };
    let locked = |kind| Kind { locked: lock == Lock::Now, ..kind };
    if image.layout.change(budget, range.clone(), locked).is_none() {
        return false;
    }
    match lock {
        Lock::Now => image.populate(budget, range, false),
        Lock::OnFault => {
            // That its mappings are looked at was charged with the change of them.
            let all = image.layout.within(range).filter(|(_, kind)| kind.of_driver);
            let all: Vec<_> = all.map(|(part, _)| part).collect();
            all.into_iter().all(|part| image.populate(budget, part, false))
        }
        Lock::Not => true,
    }
}

/// Maps `range`; the first `populated` bytes come in at once.
fn put(
    image: &mut Image,
    budget: &mut Budget,
    range: Range<u64>,
    kind: Kind,
    populated: Option<u64>,
) -> bool {
    let populated = if kind.locked { Some(range.end - range.start) } else { populated };
    unmap(image, budget, range.clone())
        && {
            image.layout.set(range.clone(), kind);
            image.look_again(budget, &range)
        }
        && populated.is_none_or(|bytes| image.populate(budget, named(range.start, bytes), false))
}

fn unmap(image: &mut Image, budget: &mut Budget, range: Range<u64>) -> bool {
    let ok = image.walk(budget, &range);
    image.layout.clear(range.clone());
    ok && image.drop_pages(budget, &range) && image.look_again(budget, &range)
}

fn map(image: &mut Image, budget: &mut Budget, call: &Call, file: Option<FileAt>) -> bool {
    let [_, len, protection, flags, ..] = call.args;
    let has = |flag: i32| flags & flag as u64 != 0;
    let shared = is_shared(flags);
    let zeros = call.file().is_some_and(|file| file.kind == FileKind::Zero);
    let kind = Kind {
        anonymous: !shared && (has(libc::MAP_ANONYMOUS) || zeros),
        accessible: protection & PROTECTIONS != 0,
        readable: protection & libc::PROT_READ as u64 != 0,
        writable: protection & libc::PROT_WRITE as u64 != 0,
        shared,
        refuses: false,
        locked: has(libc::MAP_LOCKED) || image.locks_new,
        of_driver: false,
        grows_down: has(libc::MAP_GROWSDOWN),
        wiped_at_fork: false,
        left_at_fork: false,
        advice: Advice::None,
        file,
    };
    let populated = has(libc::MAP_POPULATE).then(|| populated_bytes(call));
    put(image, budget, named(call.result as u64, len), kind, populated)
}

fn remap(image: &mut Image, budget: &mut Budget, call: &Call) -> bool {
    let [start, old_len, new_len, flags, ..] = call.args;
    let (old, new) = (named(start, old_len), named(call.result as u64, new_len));
    let Some((_, kind)) = image.layout.at(start) else {
        // Of mappings that are not known.
        return put(image, budget, new, Kind::HEAP, None);
    };
    if old.start == new.start {
        // In place: a part goes, or one is added.
        let (kept, end) = (old.end.min(new.end), old.end.max(new.end));
        return if new.end < old.end {
            unmap(image, budget, kept..end)
        } else {
            put(image, budget, kept..end, kind, None)
        };
    }
    let kind = Kind { file: kind.file.map(|file| file.moved(old.start, new.start)), ..kind };
    let moved = old.start..old.end.min(old.start + (new.end - new.start));
    let ok = put(image, budget, new.clone(), Kind { locked: false, ..kind }, None)
        && (moved.is_empty() || image.move_pages(budget, &moved, new.start));
    image.layout.set(new.clone(), kind);
    let stays = flags & libc::MREMAP_DONTUNMAP as u64 != 0;
    ok && (stays || old.is_empty() || unmap(image, budget, old))
        && (!kind.locked || image.populate(budget, new, false))
}

fn set_brk(image: &mut Image, budget: &mut Budget, brk: u64) -> bool {
    let (old, new) = (image.brk, brk.next_multiple_of(4096));
    let grown = pages_of(old, new.saturating_sub(old));
    let kind = Kind { locked: image.locks_new, ..Kind::HEAP };
    let mapped: Vec<_> = image.layout.within(grown.clone()).map(|(part, _)| part).collect();
    if !mapped.is_empty() {
        // No heap grows over what is mapped. But a replay may have refused to map that.
        return put_between(image, budget, grown, &mapped, kind);
    }
    image.brk = new;
    if new < old {
        return unmap(image, budget, new..old);
    }
    put(image, budget, grown, kind, None)
}

/// Maps what of `range` is not `mapped`.
fn put_between(
    image: &mut Image,
    budget: &mut Budget,
    range: Range<u64>,
    mapped: &[Range<u64>],
    kind: Kind,
) -> bool {
    let mut from = range.start;
    budget.mappings(mapped.len() as u64)
        && mapped.iter().chain([&(range.end..range.end)]).all(|part| {
            let gap = std::mem::replace(&mut from, part.end)..part.start;
            gap.is_empty() || put(image, budget, gap, kind, None)
        })
}

fn advise(image: &mut Image, budget: &mut Budget, range: Range<u64>, advice: i32) -> bool {
    match advice {
        libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED | libc::MADV_REMOVE => image.drop_pages(budget, &range),
        libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE => {
            let advice = if advice == libc::MADV_HUGEPAGE { Advice::Huge } else { Advice::NoHuge };
            image.layout.change(budget, range.clone(), |kind| Kind { advice, ..kind }).is_some()
                && image.look_again(budget, &range)
        }
        libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => {
            let wiped_at_fork = advice == libc::MADV_WIPEONFORK;
            image.layout.change(budget, range, |kind| Kind { wiped_at_fork, ..kind }).is_some()
        }
        libc::MADV_DONTFORK | libc::MADV_DOFORK => {
            let left_at_fork = advice == libc::MADV_DONTFORK;
            image.layout.change(budget, range, |kind| Kind { left_at_fork, ..kind }).is_some()
        }
        // A range that is collapsed to large folios is there as a whole.
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE | libc::MADV_COLLAPSE => {
            image.populate(budget, range, advice == libc::MADV_POPULATE_READ)
        }
        // Guards need tables, and no pages.
        MADV_GUARD_INSTALL => {
            let mapped = image.layout.within(range.clone()).map(|(part, _)| part.end - part.start);
            let guards = mapped.sum::<u64>() >> 12;
            budget.bring_in(guards / GUARDS_OF_PAGE)
                && image.drop_pages(budget, &range)
                && image.layout.change(budget, range.clone(), |kind| Kind { refuses: true, ..kind }).is_some()
                && image.make_tables(budget, range)
        }
        _ => true,
    }
}
