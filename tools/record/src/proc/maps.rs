//! Mappings: `/proc/PID/maps` and `/proc/PID/smaps`.

use super::read;
use crate::sys::Tid;
use quire_trace::event::{Mapping, VmFlags};
use std::collections::BTreeSet;

/// The mappings of a process with their flags, by address. Empty if the process has ended.
///
/// The vsyscall page is left out: it belongs to no address space.
pub(crate) fn with_flags(tid: Tid) -> Vec<Mapping> {
    let text = read(tid, "smaps");
    if text.is_empty() { without_flags(tid) } else { parse(&text) }
}

/// The mappings of a process without their flags: cheaper, since the kernel need not count pages.
pub(crate) fn without_flags(tid: Tid) -> Vec<Mapping> {
    parse(&read(tid, "maps"))
}

/// The parts between two addresses of a process that map shared memory: anonymous, memfds, System V segments,
/// and files in `/dev/shm` or on one of these devices, each of a tmpfs.
pub(crate) fn shared_memory(
    tid: Tid,
    (start, end): (u64, u64),
    in_memory: &BTreeSet<u64>,
) -> Vec<(u64, u64)> {
    shared_parts(&without_flags(tid), (start, end), in_memory)
}

fn shared_parts(
    mappings: &[Mapping],
    (start, end): (u64, u64),
    in_memory: &BTreeSet<u64>,
) -> Vec<(u64, u64)> {
    /// The file system in memory that the kernel mounts for itself.
    const INTERNAL: u64 = libc::makedev(0, 1);
    let is_memory = |mapping: &&Mapping| {
        let on_device = mapping.device == INTERNAL || in_memory.contains(&mapping.device);
        mapping.inode != 0 && (on_device || mapping.name.starts_with(b"/dev/shm/"))
    };
    let part = |mapping: &Mapping| (mapping.start.max(start), mapping.end.min(end));
    mappings.iter().filter(is_memory).map(part).filter(|(start, end)| start < end).collect()
}

/// A mapping that has resident pages, and how many of its pages were referenced since that was reset last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Referenced {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) pages: u64,
}

/// The mappings of a process in which a page is resident, other than the zero page, with the number of
/// referenced pages of each, by address.
pub(crate) fn referenced(tid: Tid) -> Vec<Referenced> {
    parse_referenced(&read(tid, "smaps"))
}

fn parse_referenced(text: &[u8]) -> Vec<Referenced> {
    const KIB_A_PAGE: u64 = 4;
    let pages = |size: &[u8]| {
        let size = str::from_utf8(size).ok().and_then(|size| size.trim().strip_suffix(" kB"));
        size.and_then(|size| size.trim().parse::<u64>().ok()).unwrap_or(0) / KIB_A_PAGE
    };
    let mut mappings: Vec<Referenced> = Vec::new();
    // The lines are about the last one in the list.
    let mut is_listed = false;
    for line in text.split(|byte| *byte == b'\n') {
        if let Some(size) = line.strip_prefix(b"Rss:") {
            if is_listed && pages(size) == 0 {
                mappings.pop();
                is_listed = false;
            }
        } else if let Some(size) = line.strip_prefix(b"Referenced:") {
            if let Some(mapping) = mappings.last_mut().filter(|_| is_listed) {
                mapping.pages = pages(size);
            }
        } else if let Some(Mapping { start, end, name, .. }) = mapping(line) {
            is_listed = *name != *b"[vsyscall]";
            if is_listed {
                mappings.push(Referenced { start, end, pages: 0 });
            }
        }
    }
    mappings
}

/// How many mappings a process has.
pub(crate) fn count(tid: Tid) -> u64 {
    count_lines(&read(tid, "maps"))
}

/// Each mapping is a line; the last can be the vsyscall page's.
fn count_lines(text: &[u8]) -> u64 {
    let lines = text.iter().filter(|byte| **byte == b'\n').count() as u64;
    lines - u64::from(text.ends_with(b"[vsyscall]\n"))
}

fn parse(text: &[u8]) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        if let Some(words) = line.strip_prefix(b"VmFlags:") {
            let flags = VmFlags::from_words(str::from_utf8(words).unwrap_or_default());
            if let Some(mapping) = mappings.last_mut() {
                mapping.flags = flags;
            }
        } else if let Some(mapping) = mapping(line) {
            mappings.push(mapping);
        }
    }
    mappings.retain(|mapping| *mapping.name != *b"[vsyscall]");
    mappings
}

/// Parses `START-END PERMS OFFSET MAJOR:MINOR INODE   NAME`; other lines of smaps are `Key: ...`.
fn mapping(line: &[u8]) -> Option<Mapping> {
    let mut words = line.splitn(6, |byte| *byte == b' ');
    let mut word = || words.next().and_then(|word| str::from_utf8(word).ok());
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = word()?.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let perms = word()?.as_bytes();
    let offset = hex(word()?)?;
    let (major, minor) = word()?.split_once(':')?;
    let device = libc::makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = word()?.parse().ok()?;
    // The name is padded with spaces on its left and may have more inside; it need not be UTF-8.
    let name = words.next().unwrap_or_default().trim_ascii_start();
    Some(Mapping {
        start,
        end,
        read: perms.first() == Some(&b'r'),
        write: perms.get(1) == Some(&b'w'),
        execute: perms.get(2) == Some(&b'x'),
        shared: perms.get(3) == Some(&b's'),
        offset,
        device,
        inode,
        name: name.into(),
        ..Mapping::default()
    })
}

/// Where the kernel placed a thread's vDSO.
pub(crate) fn vdso(tid: Tid) -> Option<u64> {
    let bytes = read(tid, "auxv");
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).ok();
    let mut entries = bytes.chunks_exact(16);
    let entry = entries.find(|entry| word(&entry[..8]) == Some(libc::AT_SYSINFO_EHDR))?;
    word(&entry[8..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_spaces_in_its_name_is_understood() {
        let text = b"7f00-8f00 r-xs 00002000 fe:01 42                 /a b  c (deleted)\nRss: 4 kB\nVmFlags: rd ex sh mr \n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";
        let mappings = parse(text);
        assert_eq!(mappings.len(), 1);
        assert_eq!((count_lines(b""), count_lines(b"1-2 r\n2-3 r\n3-4 x [vsyscall]\n")), (0, 2));
        let mapping = &mappings[0];
        assert_eq!((mapping.start, mapping.end, mapping.offset, mapping.inode), (0x7f00, 0x8f00, 0x2000, 42));
        assert_eq!(*mapping.name, *b"/a b  c (deleted)");
        assert!(mapping.read && !mapping.write && mapping.execute && mapping.shared);
        assert!(mapping.flags.has(*b"sh") && !mapping.flags.has(*b"wr"));
        assert_eq!(mapping.device, libc::makedev(0xfe, 1));
    }

    #[test]
    fn shared_memory_is_known_by_its_device_or_name() {
        let text = b"1000-5000 rw-s 00000000 00:01 7 /dev/zero (deleted)\n\
            5000-6000 rw-s 00000000 00:05 7 /dev/zero\n\
            6000-8000 r--p 00000000 00:01 9 /memfd:a b (deleted)\n\
            8000-9000 rw-s 00000000 00:19 3 /dev/shm/psm_5\n\
            9000-a000 rw-p 00000000 00:00 0\n\
            a000-b000 rw-s 00000000 00:19 3 /tmp/dev/shm/a\n";
        let mappings = parse(text);
        let all = [(0x1000, 0x5000), (0x6000, 0x8000), (0x8000, 0x9000)];
        let none = BTreeSet::new();
        assert_eq!(shared_parts(&mappings, (0, u64::MAX), &none), all);
        assert_eq!(shared_parts(&mappings, (0x2000, 0x7000), &none), [(0x2000, 0x5000), (0x6000, 0x7000)]);
        let mounted = BTreeSet::from([libc::makedev(0, 0x19)]);
        assert_eq!(
            shared_parts(&mappings, (0x8000, u64::MAX), &mounted),
            [(0x8000, 0x9000), (0xa000, 0xb000)]
        );
    }

    #[test]
    fn referenced_pages_are_read() {
        let text =
            b"1000-8000 rw-p 00000000 00:00 0\nRss:  28 kB\nReferenced:            12 kB\nVmFlags: rd wr\n\
            8000-9000 rw-p 00000000 00:00 0\nRss: 0 kB\nReferenced: 0 kB\n\
            9000-a000 rw-p 00000000 00:00 0\nRss: 4 kB\nReferenced: 0 kB\n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\nRss: 0 kB\nReferenced: 0 kB\n";
        let expected = [(0x1000, 0x8000, 3), (0x9000, 0xa000, 0)];
        assert_eq!(
            parse_referenced(text),
            expected.map(|(start, end, pages)| Referenced { start, end, pages })
        );
    }

    #[test]
    fn our_own_mappings_are_read() {
        let pid = std::process::id() as Tid;
        let mappings = with_flags(pid);
        assert!(mappings.iter().any(|mapping| *mapping.name == *b"[stack]" && mapping.flags.has(*b"gd")));
        assert!(mappings.is_sorted_by_key(|mapping| mapping.start));
    }
}
