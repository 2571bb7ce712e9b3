//! Building the address space that a program begins with.

use super::files::FileIds;
use super::page_set::PageSet;
use crate::space::HostSpace;
use quire_arch::{Access, VirtAddr, VirtRange};
use quire_host::Machine;
use quire_mm::{
    memcg::MemcgId,
    space::{Error, ExecGain, FaultError, Layout, Limits, Rights, VmFlags},
    thp::HugeDisable,
};
use quire_trace::event::{
    Direction, ExecGain as Recorded, ExecImage, Mapping, PageRun, Privileges, ThpDisable, VmFlags as Letters,
};

/// Pages of 4 KiB, which is all that the recorder knows.
const PAGE: u64 = 4096;

/// Where Linux looks upwards from in the usual layout, when there is no room below: a third of user space.
const LEGACY_BASE: u64 = 0x2aaa_aaaa_a000;

/// The names of the kernel's own mappings, which are not split.
const SPECIAL: [&[u8]; 4] = [b"[vdso]", b"[vvar]", b"[vvar_vclock]", b"[uprobes]"];

/// Our flags for the two-letter words of smaps. The words for things that cannot be seen here are left out.
fn flags_of(mapping: &Mapping) -> VmFlags {
    let mut flags = VmFlags::empty();
    for &(flag, mnemonic) in quire_mm::proc::SMAPS_MNEMONICS {
        if let [first, second] = *mnemonic.as_bytes() {
            flags.set(flag, mapping.flags.has([first, second]));
        }
    }
    flags.set(VmFlags::WHOLE, SPECIAL.contains(&&*mapping.name));
    // Frames of other kinds in between: as rigid as frames without descriptors.
    flags.set(VmFlags::PFNMAP, flags.contains(VmFlags::PFNMAP) || mapping.flags.has(*b"mm"));
    if mapping.flags == Letters::default() {
        // The kernel gave no flags: the permissions say what they can.
        flags.set(VmFlags::READ, mapping.read);
        flags.set(VmFlags::WRITE, mapping.write);
        flags.set(VmFlags::EXEC, mapping.execute);
        flags.set(VmFlags::SHARED | VmFlags::MAYSHARE, mapping.shared);
        flags |= VmFlags::MAY_ACCESS;
    }
    flags
}

fn layout_of(image: &ExecImage) -> Layout {
    let base = image.mmap_base;
    let up = base.filter(|base| base.direction == Direction::Up);
    let down = base.filter(|base| base.direction == Direction::Down);
    Layout {
        mmap_base: VirtAddr(down.map_or(LEGACY_BASE, |base| base.addr)),
        mmap_legacy_base: VirtAddr(up.map_or(LEGACY_BASE, |base| base.addr)),
        top_down: up.is_none(),
        mmap_min: VirtAddr(image.lowest_placed),
        fixed_min: VirtAddr(image.mmap_min_addr),
        brk_start: VirtAddr(image.start_brk),
        brk: VirtAddr(image.brk),
        data_bytes: 0,
    }
}

pub(super) fn limits_of(image: &ExecImage) -> Limits {
    Limits {
        address_space: image.limits.address_space.soft,
        data: image.limits.data.soft,
        stack: image.limits.stack.soft,
        locked: image.limits.locked.soft,
        mappings: image.max_map_count,
    }
}

/// The rights from capabilities.
pub(super) fn rights_of(privileges: Privileges) -> Rights {
    let mut rights = Rights::empty();
    rights.set(Rights::LOCK, privileges.ipc_lock);
    rights.set(Rights::MAP_LOW, privileges.sys_rawio);
    rights
}

fn exec_gain_of(image: &ExecImage) -> ExecGain {
    match image.exec_gain {
        Recorded::Allowed => ExecGain::Allowed,
        Recorded::Refused => ExecGain::Refused,
        Recorded::RefusedNotInherited => ExecGain::RefusedNotInherited,
    }
}

/// The `PR_SET_THP_DISABLE` setting of a process.
pub(super) fn huge_disable_of(recorded: ThpDisable) -> HugeDisable {
    match recorded {
        ThpDisable::No => HugeDisable::No,
        ThpDisable::Completely => HugeDisable::Completely,
        ThpDisable::ExceptAdvised => HugeDisable::ExceptAdvised,
    }
}

/// Pages that are resident in a new image at most: a program's arguments, and what the kernel touches. More
/// can only be claimed.
pub(super) const MOST_RESIDENT: u64 = 1 << 14;

/// The resident pages of a mapping, as far as they lie in it.
pub(super) fn resident_runs(mapping: &Mapping) -> impl Iterator<Item = PageRun> {
    let (first, end) = (mapping.start.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX), mapping.end);
    mapping.resident.iter().map(move |run| {
        let claimed = run.start & !(PAGE - 1);
        let start = claimed.clamp(first, end.max(first));
        let pages = run.pages.saturating_sub(start.saturating_sub(claimed) / PAGE);
        PageRun { start, pages: pages.min(end.saturating_sub(start) / PAGE), file: run.file }
    })
}

/// What an image says that no program can have: mappings of the same addresses.
pub(super) fn impossible(image: &ExecImage) -> Option<&'static str> {
    let mut mappings: Vec<_> = image.mappings.iter().map(|mapping| mapping.start..mapping.end).collect();
    mappings.sort_by_key(|range| range.start);
    let is_possible = mappings.is_sorted_by(|one, next| one.end <= next.start);
    (!is_possible).then_some("an image has two mappings of the same addresses")
}

/// What could not be set up as recorded.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// In words.
    pub(super) words: Vec<String>,
    /// The first of them for which there was no memory.
    pub(super) out_of_memory: Option<String>,
}

impl Failures {
    fn add(&mut self, words: String, out_of_memory: bool) {
        if out_of_memory {
            self.out_of_memory.get_or_insert_with(|| words.clone());
        }
        self.words.push(words);
    }
}

/// Builds the space of `image`: its mappings, and the pages that were resident. It keeps the process's
/// `PR_SET_THP_DISABLE` setting. Its pages are charged to `memcg`. `None` if there is no memory for an empty
/// space.
pub(super) fn build<'m>(
    machine: &'m Machine,
    image: &ExecImage,
    huge_disable: HugeDisable,
    memcg: MemcgId,
    files: &mut FileIds<'m>,
) -> (Option<HostSpace<'m>>, Failures) {
    let mut failures = Failures::default();
    let space = match machine.memory().create_space_with(layout_of(image), limits_of(image)) {
        Ok(space) => space.acting_with(rights_of(image.privileges)),
        Err(error) => {
            failures.add(format!("exec: no address space: {error}"), true);
            return (None, failures);
        }
    };
    space.prctl().set_huge_disable(huge_disable);
    // It exists for as long as the replay.
    let _ = space.set_memcg(memcg);
    // A new space refuses nothing yet, so that this is taken.
    let _ = space.prctl().set_exec_gain(exec_gain_of(image));
    let mut left = MOST_RESIDENT;
    for mapping in &image.mappings {
        let range = VirtRange::new(VirtAddr(mapping.start), VirtAddr(mapping.end));
        if range.end() > <quire_arch::paging::X86_64Level4 as quire_arch::PagingFormat>::USER_END {
            // The vsyscall page: the kernel's, not the program's.
            continue;
        }
        let file = (mapping.inode != 0).then(|| files.id(mapping.device, mapping.inode, &mapping.name));
        let mut flags = flags_of(mapping);
        // What a driver maps is no page of the cache.
        let is_cached = !flags.intersects(VmFlags::IO | VmFlags::PFNMAP);
        let opening = file.and_then(|number| files.opening(number)).filter(|_| is_cached);
        flags.set(VmFlags::HUGE_ALIGNED, file.is_some());
        let offset = if file.is_some() { mapping.offset } else { mapping.start };
        let made = quire_mm::space::Mapping { range, flags, page_offset: offset / PAGE, file };
        let installed = match opening {
            Some(opening) => space.files().install(&made, opening),
            None => space.install(&made),
        };
        if let Err(error) = installed {
            failures.add(format!("exec: mapping {range:?}: {error}"), matches!(error, Error::NoFrames(_)));
            continue;
        }
        for run in resident_runs(mapping) {
            let pages = run.pages.min(left);
            left -= pages;
            let private = !mapping.shared && !run.file && mapping.write;
            let access = if private { Access::Write } else { Access::Read };
            if let Some(file) = file.filter(|_| is_cached).and_then(|number| files.known(number)) {
                let first = offset / PAGE + run.start.saturating_sub(mapping.start) / PAGE;
                file.bring_in(&space, first..first.saturating_add(pages), &PageSet::default());
            }
            for page in 0..pages {
                if let Err(error) = space.fault(VirtAddr(run.start + page * PAGE), access) {
                    let words = format!("exec: resident page {:#x}: {error}", run.start + page * PAGE);
                    failures.add(words, matches!(error, FaultError::OutOfMemory(_)));
                    break;
                }
            }
        }
    }
    (Some(space), failures)
}
