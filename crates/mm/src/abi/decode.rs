//! Flag words.

use super::Files;
use crate::space::{Advice, Error, HugePages, MapFlags, MapRequest, MappedFile, Protection};
use quire_arch::{PAGE_SHIFT, Platform, VirtAddr};

pub(super) const PROT_KNOWN: u64 = 0xf;
pub(super) const PROT_GROWSDOWN: u64 = 0x0100_0000;
pub(super) const PROT_GROWSUP: u64 = 0x0200_0000;

const MAP_TYPE: u64 = 0xf;
const MAP_SHARED: u64 = 1;
const MAP_PRIVATE: u64 = 2;
const MAP_SHARED_VALIDATE: u64 = 3;
const MAP_DROPPABLE: u64 = 8;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_HUGETLB: u64 = 0x4_0000;
const MAP_SYNC: u64 = 0x8_0000;

/// Flag bits that have a flag of ours.
const MAP_FLAGS: &[(u64, MapFlags)] = &[
    (0x10, MapFlags::FIXED),
    (0x10_0000, MapFlags::FIXED_NOREPLACE),
    (0x40, MapFlags::BELOW_2G),
    (0x100, MapFlags::GROWSDOWN),
    (0x2000, MapFlags::LOCKED),
    (0x4000, MapFlags::NORESERVE),
    (0x8000, MapFlags::POPULATE),
    (0x1_0000, MapFlags::NONBLOCK),
    (0x2_0000, MapFlags::STACK),
];

/// What `MAP_SHARED_VALIDATE` knows: everything that is older than it, and none of what files must opt into.
const MAP_VALIDATED: u64 = MAP_TYPE | 0x10 | MAP_ANONYMOUS | 0x40 | 0x80 | 0x7_f900;

/// The binary logarithm of the size of huge pages lies from this bit on; 0 is the default size.
const MAP_HUGE_SHIFT: u32 = 26;
/// What `MAP_SHARED_VALIDATE` knows of huge pages: their two sizes, too.
const HUGE_VALIDATED: u64 = MAP_VALIDATED | 21 << MAP_HUGE_SHIFT | 30 << MAP_HUGE_SHIFT;

/// The size of huge pages that the flags name.
fn huge_pages(word: u64) -> Option<HugePages> {
    match word >> MAP_HUGE_SHIFT & 0x3f {
        0 | 21 => Some(HugePages::Mib2),
        30 => Some(HugePages::Gib1),
        _ => None,
    }
}

/// Decodes the arguments of `mmap`.
pub(super) fn mmap<P: Platform>(args: [u64; 6], files: &impl Files<P>) -> Result<MapRequest, Error> {
    let [addr, len, prot, word, descriptor, offset] = args;
    if offset & ((1 << PAGE_SHIFT) - 1) != 0 {
        return Err(Error::Unaligned);
    }
    let kind = word & MAP_TYPE;
    let mut flags = MapFlags::empty();
    for &(bit, flag) in MAP_FLAGS {
        flags.set(flag, word & bit != 0);
    }
    flags.set(MapFlags::SHARED, kind == MAP_SHARED || kind == MAP_SHARED_VALIDATE);
    let protection = Protection::from_bits_truncate(prot as u32 & 7);
    let mut request = MapRequest { flags, ..MapRequest::anonymous(len, protection) };
    request.addr = Some(VirtAddr(addr));
    if word & MAP_ANONYMOUS != 0 {
        if word & MAP_HUGETLB != 0 {
            let size = huge_pages(word).ok_or(Error::BadFlags)?;
            request.huge_pages = Some((size, offset >> PAGE_SHIFT));
            // It is a mapping of a file that Linux makes for it.
            request.objection = match kind {
                MAP_SHARED_VALIDATE if word & (!HUGE_VALIDATED | MAP_SYNC) != 0 => {
                    Some(Error::NotSupportedByFile)
                }
                MAP_SHARED | MAP_SHARED_VALIDATE | MAP_PRIVATE => None,
                _ => Some(Error::BadFlags),
            };
            return Ok(request);
        }
        request.objection = match kind {
            MAP_SHARED | MAP_PRIVATE => None,
            MAP_DROPPABLE => return Err(Error::NotSupported),
            _ => Some(Error::BadFlags),
        };
        return Ok(request);
    }
    let file = files.open_file(descriptor as i32).ok_or(Error::BadDescriptor)?;
    if word & MAP_HUGETLB != 0 {
        return Err(Error::BadFlags);
    }
    let write = protection.contains(Protection::WRITE);
    let execute = protection.contains(Protection::EXECUTE);
    let mut may = Protection::all();
    may.set(Protection::WRITE, file.write_refused.is_none());
    may.set(Protection::EXECUTE, file.exec_refused.is_none());
    request.file = Some(MappedFile {
        id: file.id,
        page_offset: offset >> PAGE_SHIFT,
        writable: file.writable,
        may,
        max_bytes: file.max_bytes,
        huge_alignment: file.huge_alignment,
        vm_flags: file.vm_flags,
    });
    request.objection = match kind {
        MAP_SHARED_VALIDATE if word & (!MAP_VALIDATED | MAP_SYNC) != 0 => Some(Error::NotSupportedByFile),
        MAP_SHARED | MAP_SHARED_VALIDATE if write && !file.writable => Some(Error::AccessDenied),
        MAP_SHARED | MAP_SHARED_VALIDATE | MAP_PRIVATE if !file.readable => Some(Error::AccessDenied),
        MAP_SHARED | MAP_SHARED_VALIDATE | MAP_PRIVATE => {
            let exec = file.exec_refused.filter(|_| execute);
            exec.or(file.refused).or(file.write_refused.filter(|_| write)).map(Error::RefusedByFile)
        }
        _ => Some(Error::BadFlags),
    };
    Ok(request)
}

/// Decodes the advice of `madvise`.
pub(super) fn advice(word: i32) -> Result<Advice, Error> {
    Ok(match word {
        0 => Advice::Normal,
        1 => Advice::Random,
        2 => Advice::Sequential,
        3 => Advice::WillNeed,
        4 => Advice::DontNeed,
        8 => Advice::Free,
        9 => Advice::Remove,
        10 => Advice::DontFork,
        11 => Advice::DoFork,
        12 => Advice::Mergeable,
        13 => Advice::Unmergeable,
        14 => Advice::HugePage,
        15 => Advice::NoHugePage,
        16 => Advice::DontDump,
        17 => Advice::DoDump,
        18 => Advice::WipeOnFork,
        19 => Advice::KeepOnFork,
        20 => Advice::Cold,
        21 => Advice::PageOut,
        22 => Advice::PopulateRead,
        23 => Advice::PopulateWrite,
        24 => Advice::DontNeedLocked,
        25 => Advice::Collapse,
        102 => Advice::GuardInstall,
        103 => Advice::GuardRemove,
        // The two that poison pages.
        100..=101 => return Err(Error::NotSupported),
        _ => return Err(Error::BadFlags),
    })
}
