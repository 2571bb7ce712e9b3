//! Memory for timing.

use std::io;
use std::ptr;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// A mapping of this process, which it touches.
#[derive(Debug)]
pub(crate) struct Region {
    mapped: *mut libc::c_void,
    mapped_length: usize,
    start: *mut u8,
    length: usize,
}

impl Region {
    /// Anonymous memory of `usable` bytes, aligned to `unit`. `apart`: in mappings of `unit` bytes, each
    /// followed by an inaccessible gap of the same size.
    pub(crate) fn new(usable: usize, unit: usize, apart: bool) -> io::Result<Self> {
        let length = if apart { 2 * usable } else { usable };
        let access = if apart { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
        let region = Self::map(length, unit, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        if apart {
            for at in (0..length).step_by(2 * unit) {
                // SAFETY: the range is inside the mapping, of which nothing has been handed out.
                let set = unsafe {
                    libc::mprotect(region.start.add(at).cast(), unit, libc::PROT_READ | libc::PROT_WRITE)
                };
                if set != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
        }
        Ok(region)
    }

    /// A mapping of a file in memory whose pages are present.
    pub(crate) fn shared(length: usize) -> io::Result<Self> {
        use std::os::fd::AsRawFd as _;
        let file = memfd_create("quire-calibrate", MemfdFlags::CLOEXEC)?;
        // The last part may be left out by the alignment.
        ftruncate(&file, 2 * length as u64)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        Self::map(length, 4096, access, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(length: usize, unit: usize, access: i32, kind: i32, file: i32) -> io::Result<Self> {
        let mapped_length = length + unit;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), mapped_length, access, kind, file, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = mapped.cast::<u8>().map_addr(|address| address.next_multiple_of(unit));
        Ok(Self { mapped, mapped_length, start, length })
    }

    /// Advice on all of it.
    pub(crate) fn advise(&self, advice: i32) -> io::Result<()> {
        // SAFETY: the range is this mapping, whose contents nothing relies on.
        match unsafe { libc::madvise(self.start.cast(), self.length, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The same with advice on all of it.
    pub(crate) fn advised(self, advice: i32) -> io::Result<Self> {
        self.advise(advice)?;
        Ok(self)
    }

    /// Frees its pages; those of a file stay in memory.
    pub(crate) fn empty(&self) -> io::Result<()> {
        self.advise(libc::MADV_DONTNEED)
    }

    /// Collapses its small pages into huge ones.
    pub(crate) fn collapse(&self) -> io::Result<()> {
        self.advise(libc::MADV_COLLAPSE)
    }

    /// Writes a byte at each `step`.
    pub(crate) fn touch(&self, step: usize) {
        for at in (0..self.length).step_by(step) {
            // SAFETY: inside the mapping, at a page that may be written; one write that the compiler keeps.
            unsafe { self.start.add(at).write_volatile(1) };
        }
    }

    /// Zeroes it, `each` bytes at a time.
    pub(crate) fn zero(&self, each: usize) {
        for at in (0..self.length).step_by(each) {
            // SAFETY: inside the mapping, all of which may be written.
            unsafe { ptr::write_bytes(self.start.add(at), 0, each) };
            std::hint::black_box(self.start);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's own, and nothing points into it.
        unsafe { libc::munmap(self.mapped, self.mapped_length) };
    }
}

/// Regions that are touched in turn: all but one are in memory.
#[derive(Debug)]
pub(crate) struct Turns {
    regions: Vec<Region>,
    next: usize,
    step: usize,
}

impl Turns {
    /// So many that `region` makes, touched at each `step`.
    pub(crate) fn new(
        count: usize,
        step: usize,
        region: impl Fn() -> io::Result<Region>,
    ) -> io::Result<Self> {
        let regions = (0..count).map(|_| region()).collect::<io::Result<Vec<_>>>()?;
        regions.iter().for_each(|region| region.touch(step));
        Ok(Self { regions, next: 0, step })
    }

    /// The one whose turn it is, emptied, and the step at which it is to be touched.
    pub(crate) fn emptied(&mut self) -> io::Result<(&Region, usize)> {
        let region = &self.regions[self.next];
        self.next = (self.next + 1) % self.regions.len();
        region.empty()?;
        Ok((region, self.step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frames of a region, by its pages; 0 without the right to know them.
    fn frames(region: &Region) -> Vec<u64> {
        use std::os::unix::fs::FileExt as _;
        let map = std::fs::File::open("/proc/self/pagemap").expect("a map");
        let frame = |at: usize| {
            let mut entry = [0; 8];
            let page = (region.start.addr() + at) / 4096;
            map.read_exact_at(&mut entry, page as u64 * 8).expect("an entry");
            u64::from_ne_bytes(entry) & ((1 << 55) - 1)
        };
        (0..region.length).step_by(4096).map(frame).collect()
    }

    /// What was freed last is handed out first, so that one region alone gets its own frames back, which the
    /// caches have.
    #[test]
    fn a_turn_gets_frames_that_were_written_to_long_ago() {
        let region = || Region::new(1 << 20, 2 << 20, false)?.advised(libc::MADV_NOHUGEPAGE);
        let mut turns = Turns::new(4, 4096, region).expect("memory");
        let mut last = Vec::new();
        for turn in 0..8 {
            let (region, step) = turns.emptied().expect("emptied");
            assert!(frames(region).iter().all(|frame| *frame == 0), "{turn}: it is empty");
            region.touch(step);
            let now = frames(region);
            if now[0] == 0 {
                return eprintln!("skipped: frames are told to root only");
            }
            assert!(!now.iter().any(|frame| last.contains(frame)), "{turn}");
            last = now;
        }
    }
}
