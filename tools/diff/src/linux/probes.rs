//! What the host's Linux does that no file of its settings tells.

use crate::program::names::MADV_GUARD_INSTALL;
use quire_arch::PAGE_SIZE;
use std::fs::{File, OpenOptions, read_to_string};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::ptr;
use std::sync::OnceLock;

/// Private memory of this process, of the host's Linux, that is unmapped at the end.
struct PrivateMemory {
    at: *mut libc::c_void,
    bytes: usize,
}

impl PrivateMemory {
    fn of(bytes: usize) -> Option<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, where Linux finds room; no other memory is touched.
        let at = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        (at != libc::MAP_FAILED).then_some(Self { at, bytes })
    }

    /// Advice for the part that begins at byte `from`; whether it was taken.
    fn advise(&self, from: usize, bytes: usize, advice: u64) -> bool {
        assert!(from + bytes <= self.bytes, "a part of the memory");
        // SAFETY: the range is this mapping's own, and nothing but this module uses it.
        unsafe { libc::madvise(self.at.byte_add(from), bytes, advice as i32) == 0 }
    }

    fn write(&self, at: usize) {
        assert!(at < self.bytes, "a byte of the memory");
        // SAFETY: the byte is the mapping's, which is writable, and no reference to it exists. Volatile,
        // since the access itself is what counts.
        unsafe { self.at.cast::<u8>().add(at).write_volatile(1) };
    }

    /// How many pages of the part are in memory; none where `/proc` does not tell.
    fn in_memory(&self, from: usize, bytes: usize) -> usize {
        const IN_MEMORY: u64 = 1 << 63;
        let mut entries = vec![0; bytes / PAGE_SIZE as usize * size_of::<u64>()];
        let first = (self.at as u64 + from as u64) / PAGE_SIZE;
        let read = File::open("/proc/self/pagemap")
            .and_then(|file| file.read_exact_at(&mut entries, first * size_of::<u64>() as u64));
        if read.is_err() {
            return 0;
        }
        let (entries, _) = entries.as_chunks();
        entries.iter().filter(|entry| u64::from_ne_bytes(**entry) & IN_MEMORY != 0).count()
    }
}

impl Drop for PrivateMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and there are no references to it.
        unsafe { libc::munmap(self.at, self.bytes) };
    }
}

/// Whether a call that writes 2 MiB to the file at `path` makes a folio of that size, and a mapping has that
/// as a whole. What the file has is lost.
pub(super) fn has_large_folios(path: &str) -> std::io::Result<bool> {
    const HUGE: usize = 2 << 20;
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    file.set_len(0)?;
    file.write_all_at(&vec![1; HUGE], 0)?;
    // A folio at the end of the file is not mapped as a whole.
    file.set_len(2 * HUGE as u64)?;
    let Some(memory) = PrivateMemory::of(2 * HUGE) else { return Ok(false) };
    let from = memory.at.addr().next_multiple_of(HUGE) - memory.at.addr();
    // SAFETY: the part of the mapping's own memory that is replaced has no references to it.
    let at = unsafe {
        let part = memory.at.byte_add(from);
        libc::mmap(part, HUGE, libc::PROT_READ, libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the file has the byte. Volatile, since the access itself is what counts.
    let _ = unsafe { at.cast::<u8>().read_volatile() };
    let whole = memory.in_memory(from, HUGE) == HUGE / PAGE_SIZE as usize;
    drop(memory);
    file.set_len(0)?;
    Ok(whole)
}

/// Whether the host has a pool of huge pages, or may fill one: there are none here.
pub(crate) fn has_huge_pages() -> bool {
    let figure = |name: &str| read_to_string(format!("/proc/sys/vm/{name}"));
    ["nr_hugepages", "nr_overcommit_hugepages"]
        .iter()
        .any(|name| figure(name).is_ok_and(|text| text.trim() != "0"))
}

/// Whether the host marks mappings that may have guard pages (`gu` in `smaps`, since a 6.18 of late 2025).
pub(crate) fn marks_guards() -> bool {
    static MARKS: OnceLock<bool> = OnceLock::new();
    *MARKS.get_or_init(|| {
        const PAGE: usize = PAGE_SIZE as usize;
        PrivateMemory::of(PAGE).is_some_and(|memory| {
            memory.advise(0, PAGE, MADV_GUARD_INSTALL)
                && read_to_string("/proc/self/smaps").is_ok_and(|text| text.contains(" gu "))
        })
    })
}

/// Whether a folio of a size below 2 MiB comes back from swap as one. `alloc_swap_folio` of Linux allocates
/// single pages only, until the next boot, once zswap was on (`zswap_never_enabled`). Where no such size is
/// allowed, or nothing was paged out, there is nothing to forgive: true.
pub(crate) fn reads_large_folios() -> bool {
    static READS: OnceLock<bool> = OnceLock::new();
    *READS.get_or_init(|| {
        // A mapping of half of 2 MiB has room for each smaller size, and for none that PMD entries map.
        const BYTES: usize = 1 << 20;
        let Some(memory) = PrivateMemory::of(2 * BYTES) else { return true };
        let from = (memory.at as usize).next_multiple_of(BYTES) - memory.at as usize;
        memory.advise(from, BYTES, libc::MADV_HUGEPAGE as u64);
        memory.write(from);
        let folio = memory.in_memory(from, BYTES);
        memory.advise(from, BYTES, libc::MADV_PAGEOUT as u64);
        if folio <= 1 || memory.in_memory(from, BYTES) > 0 {
            return true;
        }
        memory.write(from);
        memory.in_memory(from, BYTES) == folio
    })
}
