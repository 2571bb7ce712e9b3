//! Which pages are present: `/proc/PID/pagemap`.
//!
//! The file has a word for each page, present or not, and reading those of a large reservation takes seconds.
//! Linux 6.7 and later can be asked for the ranges that have present pages (`PAGEMAP_SCAN`), and passes over
//! parts that have no page table.

use crate::sys::{Tid, check};
use quire_trace::event::PageRun;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

const PAGE: u64 = 4096;
const PRESENT: u64 = 1 << 63;
const FILE: u64 = 1 << 61;
/// It is mapped once.
const EXCLUSIVE: u64 = 1 << 56;
/// Pages read at once.
const PIECE: usize = 8192;
/// Smaller ranges are read: they have a page table or two.
const SCANNED_PAGES: u64 = 1024;
/// Ranges that are asked for at once.
const REGIONS: usize = 512;
/// On older kernels larger mappings are read up to here: a reservation of terabytes would take seconds.
const LIMIT_PAGES: u64 = 1 << 24;

/// `PAGEMAP_SCAN`, which libc does not have yet: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;
/// `PAGE_IS_FILE`.
const IS_FILE: u64 = 1 << 2;
/// `PAGE_IS_PRESENT`.
const IS_PRESENT: u64 = 1 << 3;
/// `PAGE_IS_PFNZERO`: the zero page.
const IS_ZERO: u64 = 1 << 5;
/// Mappings end here at the latest, unless a program asks for more.
const USER_END: u64 = (1 << 47) - PAGE;

/// `struct pm_scan_arg`.
#[derive(Debug, Default)]
#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    /// Where the kernel stopped.
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    /// Pages must have all of these, and any of the next.
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// The pages of one process.
#[derive(Debug)]
pub(crate) struct Pagemap(File);

impl Pagemap {
    /// Opens the file; `None` if the process is gone.
    pub(crate) fn open(tid: Tid) -> Option<Self> {
        File::open(format!("/proc/{tid}/pagemap")).ok().map(Self)
    }

    /// The runs of present pages between two addresses.
    pub(crate) fn present(&self, start: u64, end: u64) -> Vec<PageRun> {
        if end.saturating_sub(start) / PAGE > SCANNED_PAGES
            && let Ok(runs) = self.scan(start, end)
        {
            return runs;
        }
        self.read(start, end, PRESENT)
    }

    /// Those of these pages that are still present and anonymous, and that no other process has mapped.
    pub(crate) fn own(&self, run: PageRun) -> Vec<PageRun> {
        let mut own = self.read(run.start, run.start + run.pages * PAGE, PRESENT | EXCLUSIVE);
        own.retain(|run| !run.file);
        own
    }

    /// The runs of present pages of the whole process, and those of pages other than the zero page. `None`
    /// where Linux cannot be asked for them.
    pub(crate) fn all(&self) -> Option<[Vec<PageRun>; 2]> {
        let mut runs = [Vec::new(), Vec::new()];
        let [all, filled] = &mut runs;
        let scanned = self.scan_each(0, USER_END, IS_ZERO, |PageRegion { start, end, categories }| {
            let (pages, file) = ((end - start) / PAGE, categories & IS_FILE != 0);
            add(all, *start, pages, file);
            if categories & IS_ZERO == 0 {
                add(filled, *start, pages, file);
            }
        });
        scanned.ok().map(|()| runs)
    }

    /// The runs of anonymous pages other than the zero page, of the whole process. None where Linux cannot be
    /// asked for them.
    pub(crate) fn anonymous(&self, mut each: impl FnMut(PageRun)) {
        let one = |PageRegion { start, end, categories }: &PageRegion| {
            if categories & (IS_FILE | IS_ZERO) == 0 {
                each(PageRun { start: *start, pages: (end - start) / PAGE, file: false });
            }
        };
        // Where it cannot be asked it says so at once.
        self.scan_each(0, USER_END, IS_ZERO, one).unwrap_or_default();
    }

    /// Asks for the runs.
    fn scan(&self, start: u64, end: u64) -> io::Result<Vec<PageRun>> {
        let mut runs = Vec::new();
        self.scan_each(start, end, 0, |PageRegion { start, end, categories }| {
            add(&mut runs, *start, (end - start) / PAGE, categories & IS_FILE != 0);
        })?;
        Ok(runs)
    }

    /// Asks for the regions of present pages, and whether they are of `more` categories.
    fn scan_each(
        &self,
        start: u64,
        end: u64,
        more: u64,
        mut each: impl FnMut(&PageRegion),
    ) -> io::Result<()> {
        let mut regions = vec![PageRegion::default(); REGIONS];
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            start,
            end,
            vec: regions.as_mut_ptr().expose_provenance() as u64,
            vec_len: REGIONS as u64,
            category_mask: IS_PRESENT,
            return_mask: IS_PRESENT | IS_FILE | more,
            ..ScanArgument::default()
        };
        while argument.start < end {
            // SAFETY: the kernel writes to `argument`, and at most `REGIONS` regions to `regions`.
            let found = check(i64::from(unsafe {
                libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument)
            }))?;
            let found = regions.get(..found as usize).unwrap_or_default();
            found.iter().for_each(&mut each);
            // The kernel may stop early only if there is no room for more.
            if argument.walk_end <= argument.start {
                break;
            }
            argument.start = argument.walk_end;
        }
        Ok(())
    }

    /// Reads the word of each page; the pages that have all of these bits.
    fn read(&self, start: u64, end: u64, wanted: u64) -> Vec<PageRun> {
        let mut runs: Vec<PageRun> = Vec::new();
        let mut page = start / PAGE;
        let last = end.div_ceil(PAGE).min(page.saturating_add(LIMIT_PAGES));
        let mut bytes = vec![0; 8 * PIECE.min((last - page.min(last)) as usize)];
        while page < last {
            let want = bytes.len().min(8 * (last - page) as usize);
            let read = self.0.read_at(&mut bytes[..want], page * 8).unwrap_or(0);
            if read < 8 {
                break;
            }
            for entry in bytes[..read].chunks_exact(8) {
                let entry = u64::from_le_bytes([
                    entry[0], entry[1], entry[2], entry[3], entry[4], entry[5], entry[6], entry[7],
                ]);
                if entry & wanted == wanted {
                    add(&mut runs, page * PAGE, 1, entry & FILE != 0);
                }
                page += 1;
            }
        }
        runs
    }
}

/// Whether the kernel has soft-dirty bits: with them, new pages count as written. `true` if that cannot be
/// determined.
pub(crate) fn notes_writes() -> bool {
    const SOFT_DIRTY: u64 = 1 << 55;
    let local = std::hint::black_box(7_u64);
    let page = std::ptr::from_ref(&local).addr() as u64 / PAGE;
    let mut entry = [0; 8];
    let read = File::open("/proc/self/pagemap").and_then(|file| file.read_exact_at(&mut entry, page * 8));
    read.is_err() || u64::from_le_bytes(entry) & SOFT_DIRTY != 0
}

fn add(runs: &mut Vec<PageRun>, addr: u64, pages: u64, file: bool) {
    match runs.last_mut() {
        Some(run) if run.file == file && run.start + run.pages * PAGE == addr => run.pages += pages,
        _ => runs.push(PageRun { start: addr, pages, file }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_ours_is_present() {
        let local = 7_u64;
        let addr = std::ptr::from_ref(&local).addr() as u64 & !(PAGE - 1);
        let pagemap = Pagemap::open(std::process::id() as Tid).expect("our own pagemap can be read");
        let runs = pagemap.present(addr, addr + PAGE);
        assert_eq!(runs, [PageRun { start: addr, pages: 1, file: false }]);
        assert!(pagemap.present(0, PAGE).is_empty());
    }

    #[test]
    fn neighbours_of_two_kinds_are_two_runs() {
        let mut runs = Vec::new();
        for (page, file) in [(1, true), (2, true), (3, false), (5, false), (6, false)] {
            add(&mut runs, page * PAGE, 1, file);
        }
        let run = |page, pages, file| PageRun { start: page * PAGE, pages, file };
        assert_eq!(runs, [run(1, 2, true), run(3, 1, false), run(5, 2, false)]);
    }

    /// Bytes that this thread has read so far.
    fn bytes_read() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        text.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap()
    }

    #[test]
    fn a_reservation_is_not_read_page_by_page() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let len = 1 << 34;
        // SAFETY: new memory at an address of the kernel's choice, which stays mapped and is not used.
        let addr = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(addr, libc::MAP_FAILED);
        let start = addr.expose_provenance() as u64;
        let pagemap = Pagemap::open(std::process::id() as Tid).unwrap();
        if let Err(error) = pagemap.scan(start, start + len as u64) {
            return eprintln!("skipped: this kernel does not scan: {error}");
        }
        let before = bytes_read();
        assert_eq!(pagemap.present(start, start + len as u64), []);
        let read = bytes_read() - before;
        assert!(read < 1 << 16, "{read} bytes for {} pages", len as u64 / PAGE);
    }

    /// Every third page of a reservation is touched here and there, so that there are more runs than the
    /// kernel returns at once; and pages of a file.
    #[test]
    fn scanning_finds_the_same_as_reading() {
        const PAGES: usize = 1 << 20;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (len, prot) = (PAGES * PAGE as usize, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: new memory at an address of the kernel's choice, which stays mapped.
        let addr = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        assert_ne!(addr, libc::MAP_FAILED);
        // SAFETY: the range is this mapping. The host may have huge pages on, of any size.
        assert_eq!(unsafe { libc::madvise(addr, len, libc::MADV_NOHUGEPAGE) }, 0);
        let touch = |page: usize| {
            // SAFETY: inside of the mapping.
            unsafe { addr.cast::<u8>().add(page * PAGE as usize).write_volatile(1) };
        };
        (0..4000).step_by(3).chain(700_000..702_000).for_each(touch);
        let file = File::open("/proc/self/exe").unwrap();
        let (offset, shared) = (10_000 * PAGE as usize, libc::MAP_PRIVATE | libc::MAP_FIXED);
        // SAFETY: over a part of the mapping; the first page of the program is there to be read.
        unsafe {
            let place = addr.cast::<u8>().add(offset);
            let mapped =
                libc::mmap(place.cast(), PAGE as usize, libc::PROT_READ, shared, file.as_raw_fd(), 0);
            assert_ne!(mapped, libc::MAP_FAILED);
            place.read_volatile();
        }
        let start = addr.expose_provenance() as u64;
        let pagemap = Pagemap::open(std::process::id() as Tid).unwrap();
        let read = pagemap.read(start, start + len as u64, PRESENT);
        assert_eq!(read.len(), 1334 + 1 + 1);
        assert_eq!(read.iter().filter(|run| run.file).count(), 1);
        match pagemap.scan(start, start + len as u64) {
            Ok(scanned) => assert_eq!(scanned, read),
            Err(error) => eprintln!("skipped: this kernel does not scan: {error}"),
        }
        // A range that begins and ends inside of a run.
        let here = |runs: Vec<PageRun>| -> Vec<PageRun> {
            runs.into_iter().filter(|run| (start..start + len as u64).contains(&run.start)).collect()
        };
        // SAFETY: inside of the mapping; a read maps the zero page.
        unsafe { addr.cast::<u8>().add(5000 * PAGE as usize).read_volatile() };
        assert_eq!(pagemap.read(start, start + len as u64, PRESENT).len(), read.len() + 1);
        if let Some([all, filled]) = pagemap.all() {
            assert_eq!(here(all), pagemap.read(start, start + len as u64, PRESENT));
            assert_eq!(here(filled), read);
        }
        let (from, to) = (start + 700_500 * PAGE, start + 701_000 * PAGE);
        let inside = [PageRun { start: from, pages: 500, file: false }];
        assert_eq!(
            (pagemap.read(from, to, PRESENT), &pagemap.present(from, to)[..]),
            (inside.to_vec(), &inside[..])
        );
    }
}
