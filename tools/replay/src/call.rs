//! Making recorded calls again.

use super::args::{
    MAP_32BIT, MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_HUGETLB, MAP_NORESERVE, MAP_POPULATE,
    MAP_PRIVATE, MAP_SHARED, MAP_SHARED_VALIDATE, MAP_TYPE,
};
use super::files::{FileIds, RecordedFile};
use super::mismatch::Gap;
use super::{failed, names, segments, unbuilt};
use crate::space::HostSpace;
use quire_arch::{PAGE_SIZE, VirtAddr};
use quire_mm::abi::{self, CallNumber, CallOutcome, FaultIn};
use quire_mm::space::{Errno, Protection, RemapFlags, VmFlags};
use quire_trace::event::{Call, FileKind};

/// The result of a call, compared with the recording.
pub(super) enum Verdict {
    /// Linux's result.
    Same,
    /// Another result: what Quire returned, in words.
    Differs(String),
    /// Another result, which depends on settings of huge pages, and the recorded ones were others.
    DependsOnSettings,
    /// Quire cannot do this.
    Unsupported(Gap),
}

const PR_SET_VMA: u64 = libc::PR_SET_VMA as u64;
const READ_IMPLIES_EXEC: u64 = libc::READ_IMPLIES_EXEC as u64;
const PERSONALITY_QUERY: u64 = 0xffff_ffff;

/// How many bytes of its length an `mmap` with `MAP_POPULATE` faults in: those that the file has. It stops at
/// the first page behind the end, where Linux has no page to map. (A database maps gigabytes of a small
/// file.)
pub(super) fn populated_bytes(call: &Call) -> u64 {
    let [_, len, _, _, _, offset] = call.args;
    match call.file() {
        Some(facts) if matches!(facts.kind, FileKind::Regular | FileKind::Memory) => {
            len.min(facts.size.saturating_sub(offset).checked_next_multiple_of(PAGE_SIZE).unwrap_or(len))
        }
        _ => len,
    }
}

/// Makes `call` in `space` and compares. `same_settings`: the replay has the recorded settings of huge pages.
pub(super) fn replay(
    space: &HostSpace<'_>,
    call: &Call,
    files: &mut FileIds<'_>,
    same_settings: bool,
) -> Verdict {
    let [_, len, protection, flags, ..] = call.args;
    let populates = i64::from(call.number) == libc::SYS_mmap && flags & MAP_POPULATE != 0;
    let bytes = populated_bytes(call);
    // Of a file whose size is known no more than it has comes in.
    let is_known = call.file().is_some_and(|facts| files.knows(facts));
    if !populates || bytes >= len || is_known {
        return replay_whole(space, call, files, same_settings);
    }
    let mut without = call.clone();
    without.args[3] &= !MAP_POPULATE;
    let verdict = replay_whole(space, &without, files, same_settings);
    if call.errno().is_none() && bytes > 0 {
        let writes = Protection::from_bits_truncate(protection as u32).contains(Protection::WRITE);
        let private = flags & MAP_TYPE == MAP_PRIVATE;
        let advice = if writes && private { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        let args = [call.result as u64, bytes, advice as u64, 0, 0, 0];
        // What MAP_POPULATE cannot bring in is no error.
        let _ = abi::call(space, CallNumber::Madvise, args, &abi::NoFiles, &FaultIn(space));
    }
    verdict
}

/// Makes a call that populates all that it maps, or nothing, and compares.
fn replay_whole(space: &HostSpace<'_>, call: &Call, files: &mut FileIds<'_>, same_settings: bool) -> Verdict {
    if let Some(verdict) = beside_memory(call) {
        return verdict;
    }
    let number = CallNumber::from_raw(call.number);
    let failed = call.errno().is_some();
    if let CallNumber::Other(_) = number {
        if !failed && let Some(found) = segments::replay(space, call, files) {
            return found.map_or_else(Verdict::Differs, |()| Verdict::Same);
        }
        // A call that Linux refused had no effect, so it is no gap.
        return if failed {
            Verdict::Same
        } else {
            not_built(space, call, files, names::of_form(number, &call.args))
        };
    }
    let file = RecordedFile::of(call, files);
    if call.file().is_some_and(|facts| facts.kind == FileKind::HugePages) {
        // How many there are is not known.
        if failed {
            return Verdict::Same;
        }
        return not_built(space, call, files, "mmap of a file of huge pages".to_owned());
    }
    let outcome = if failed::has_failed(call) {
        failed::make(space, call, &file, files)
    } else {
        abi::call(space, number, call.args, &file, &FaultIn(space))
    };
    match outcome.raw() {
        None if failed => Verdict::Same,
        None => not_built(space, call, files, names::of_form(number, &call.args)),
        Some(raw) if raw == call.result => Verdict::Same,
        Some(raw) if is_random_place(call, raw) && move_there(space, call, raw, &file) => Verdict::Same,
        Some(raw) if lacks_huge_pages(call, raw) => {
            map_again(space, call, &file, MAP_NORESERVE);
            Verdict::Unsupported(Gap(names::of_form(number, &call.args)))
        }
        Some(_) if needs_page_cache(space, call, number) => Verdict::Unsupported(Gap(format!(
            "{} of files and shared memory",
            names::of_form(number, &call.args)
        ))),
        Some(_) if failed::may_pass_end_of_file(space, call, files) => Verdict::Unsupported(Gap(format!(
            "{} past the end of a file",
            names::of_form(number, &call.args)
        ))),
        Some(_) if !same_settings && is_collapse(call, number) => Verdict::DependsOnSettings,
        Some(raw) if files.has_other_places() && is_shared_place(call, number, raw) => {
            catch_up(space, call, number, outcome, &file);
            Verdict::DependsOnSettings
        }
        Some(_) => {
            let found = describe(outcome);
            catch_up(space, call, number, outcome, &file);
            Verdict::Differs(found)
        }
    }
}

/// Calls that do not change the address space, or only its limits, which follow as events of their own.
fn beside_memory(call: &Call) -> Option<Verdict> {
    let succeeded = call.errno().is_none();
    // The first arguments of these are 32 bits wide.
    let beside = match (i64::from(call.number), call.args[0] & 0xffff_ffff) {
        // The memory policy is the thread's, and there is only one node.
        (libc::SYS_setrlimit | libc::SYS_prlimit64 | libc::SYS_set_mempolicy, _)
        | (libc::SYS_personality, PERSONALITY_QUERY) => true,
        // A successful exec is an event of its own; a failed one changed nothing. There are no protection
        // keys, and names of mappings are not kept: as on a CPU and a kernel without them.
        (libc::SYS_execve | libc::SYS_execveat | libc::SYS_pkey_alloc | libc::SYS_pkey_free, _)
        | (libc::SYS_prctl, PR_SET_VMA) => !succeeded,
        (libc::SYS_personality, wanted) => wanted & READ_IMPLIES_EXEC == 0,
        _ => false,
    };
    beside.then_some(Verdict::Same)
}

/// Whether Linux chose the place at random: that of a mapping in the first 2 GiB without a hint that it could
/// use (`MAP_32BIT`), unless the program runs without address randomisation. `ours` is the place that Quire
/// chose.
fn is_random_place(call: &Call, ours: i64) -> bool {
    const BELOW_2G: std::ops::Range<i64> = 0x4000_0000..0x8000_0000;
    let [hint, _, _, flags, ..] = call.args;
    CallNumber::from_raw(call.number) == CallNumber::Mmap
        && [ours, call.result].iter().all(|&place| place.cast_unsigned() != hint & !(PAGE_SIZE - 1))
        && flags & (MAP_32BIT | MAP_FIXED | MAP_FIXED_NOREPLACE) == MAP_32BIT
        && BELOW_2G.contains(&call.result)
        && BELOW_2G.contains(&ours)
}

/// Moves the mapping that `call` made at `ours` to Linux's address; `false` if that is not free.
fn move_there(space: &HostSpace<'_>, call: &Call, ours: i64, file: &RecordedFile<'_, '_>) -> bool {
    let [_, len, protection, flags, descriptor, offset] = call.args;
    if space.munmap(VirtAddr(ours as u64), len).is_err() {
        return false;
    }
    // MAP_SHARED_VALIDATE knows no MAP_FIXED_NOREPLACE, and has validated the flags already.
    let flags = if flags & MAP_TYPE == MAP_SHARED_VALIDATE { flags & !MAP_TYPE | MAP_SHARED } else { flags };
    let again = [call.result as u64, len, protection, flags | MAP_FIXED_NOREPLACE, descriptor, offset];
    abi::call(space, CallNumber::Mmap, again, file, &FaultIn(space)).raw() == Some(call.result)
}

/// Whether Linux had a pool of huge pages for the mapping, of which there is none here.
fn lacks_huge_pages(call: &Call, raw: i64) -> bool {
    CallNumber::from_raw(call.number) == CallNumber::Mmap
        && call.args[3] & MAP_HUGETLB != 0
        && call.errno().is_none()
        && raw == -i64::from(Errno::ENOMEM.0)
}

/// Whether Linux chose where shared memory is mapped, or may be, and mapped it, as was done here: settings of
/// its folios decide where.
fn is_shared_place(call: &Call, number: CallNumber, ours: i64) -> bool {
    let is_mapped = ours > 0 && call.errno().is_none();
    let [.., flags, _, _] = call.args;
    is_mapped
        && match number {
            CallNumber::Mmap if flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) == 0 => match call.file() {
                Some(file) if flags & MAP_ANONYMOUS == 0 => {
                    matches!(file.kind, FileKind::Memory | FileKind::Zero)
                }
                _ => flags & MAP_TYPE != MAP_PRIVATE,
            },
            CallNumber::Mremap => {
                RemapFlags::from_bits_truncate(flags as u32) & (RemapFlags::MAYMOVE | RemapFlags::FIXED)
                    == RemapFlags::MAYMOVE
            }
            _ => false,
        }
}

/// Whether it asks for huge pages: the only other call whose result depends on their settings.
fn is_collapse(call: &Call, number: CallNumber) -> bool {
    number == CallNumber::Madvise && call.args[2] as i32 == libc::MADV_COLLAPSE
}

/// COLLAPSE of memory that belongs to the page cache.
fn needs_page_cache(space: &HostSpace<'_>, call: &Call, number: CallNumber) -> bool {
    let [start, len, ..] = call.args;
    if !is_collapse(call, number) {
        return false;
    }
    let mut found = false;
    space.mappings().for_each(|mapping| {
        let beside = mapping.range.end().0 <= start || mapping.range.start().0 >= start.saturating_add(len);
        let shared = mapping.flags.contains(VmFlags::MAYSHARE);
        found |= !beside && (shared || mapping.file.is_some());
    });
    found
}

/// A call that succeeded on Linux, and that is not built.
fn not_built(space: &HostSpace<'_>, call: &Call, files: &mut FileIds<'_>, what: String) -> Verdict {
    if CallNumber::from_raw(call.number) != CallNumber::Mmap {
        unbuilt::apply(space, call, files);
    } else if call.errno().is_none() {
        let protection = Protection::from_bits_truncate(call.args[2] as u32);
        unbuilt::map_private(space, call.result as u64, call.args[1], protection);
    }
    Verdict::Unsupported(Gap(what))
}

/// Maps what Linux mapped at Linux's address, with these additional flags.
fn map_again(space: &HostSpace<'_>, call: &Call, file: &RecordedFile<'_, '_>, besides: u64) {
    let linux = call.result as u64;
    let [_, len, protection, flags, descriptor, offset] = call.args;
    let flags = (flags | MAP_FIXED | besides) & !MAP_FIXED_NOREPLACE;
    let again = [linux, len, protection, flags, descriptor, offset];
    let outcome = abi::call(space, CallNumber::Mmap, again, file, &FaultIn(space));
    if !matches!(outcome, CallOutcome::Done(_)) {
        unbuilt::map_private(space, linux, len, Protection::from_bits_truncate(protection as u32));
    }
}

/// Brings the space to Linux's state after a call with another result.
fn catch_up(
    space: &HostSpace<'_>,
    call: &Call,
    number: CallNumber,
    outcome: CallOutcome,
    file: &RecordedFile<'_, '_>,
) {
    let linux = call.errno().is_none().then_some(call.result as u64);
    let ours = if let CallOutcome::Done(value) = outcome { Some(value) } else { None };
    match number {
        CallNumber::Mmap => {
            if let Some(ours) = ours {
                let _ = space.munmap(VirtAddr(ours), call.args[1]);
            }
            if linux.is_some() {
                map_again(space, call, file, 0);
            }
        }
        CallNumber::Mremap => {
            if let (Some(ours), None) = (ours, linux) {
                move_back(space, call, ours);
            } else if let (Some(ours), Some(linux)) = (ours, linux) {
                let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                let _ = space.mremap(VirtAddr(ours), call.args[2], call.args[2], flags, VirtAddr(linux));
            } else if let Some(linux) = linux {
                let protection = unbuilt::protection_at(space, call.args[0]);
                unbuilt::map_private(space, linux, call.args[2], protection);
            }
        }
        CallNumber::Brk => {
            if let Some(linux) = linux {
                space.brk(VirtAddr(linux));
            }
        }
        _ => {}
    }
}

/// Undoes an `mremap` that Linux refused, as far as nothing was unmapped by it.
fn move_back(space: &HostSpace<'_>, call: &Call, ours: u64) {
    let [start, old_len, new_len, flags, ..] = call.args;
    let page_align = |len: u64| len.checked_next_multiple_of(PAGE_SIZE).unwrap_or(0);
    let (old, new) = (page_align(old_len), page_align(new_len));
    if ours != start && old > 0 && flags & libc::MREMAP_DONTUNMAP as u64 == 0 {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let _ = space.mremap(VirtAddr(ours), new, old.min(new), flags, VirtAddr(start));
    } else if ours != start {
        let _ = space.munmap(VirtAddr(ours), new);
    } else if old < new {
        let _ = space.munmap(VirtAddr(start + old), new - old);
    }
}

/// A result in words: an address or number, or an errno's name.
fn describe(outcome: CallOutcome) -> String {
    match outcome {
        CallOutcome::Done(value) => format!("{value:#x}"),
        CallOutcome::Failed(errno) => errno.to_string(),
        CallOutcome::Unsupported => "unsupported".to_owned(),
    }
}

/// The recorded result in the same words.
pub(super) fn describe_recorded(call: &Call) -> String {
    match call.errno() {
        Some(errno) => Errno(errno).to_string(),
        None => format!("{:#x}", call.result),
    }
}
