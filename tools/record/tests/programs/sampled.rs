//! Programs that look at what the recorder did to their memory.

use crate::shared::{NOT_PERMITTED, PAGE};
use crate::{PRIVATE, READ_WRITE, end, leave, make_process, map, nap, wait_for};
use std::os::unix::fs::FileExt;

const SHARED_PAGES: usize = 64;

/// How many of the pages no other process maps; `None` if Linux shows no frames. Memory may move meanwhile,
/// or be swapped out, so that the frames themselves say nothing.
fn pages_of_its_own(addr: *mut u8) -> Option<usize> {
    const FRAME: u64 = (1 << 55) - 1;
    const MAPPED_ONCE: u64 = 1 << 56;
    const PRESENT: u64 = 1 << 63;
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut words = [0; 8 * SHARED_PAGES];
    pagemap.read_exact_at(&mut words, (addr.addr() / PAGE * 8) as u64).unwrap();
    let (words, _) = words.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let own = words.iter().filter(|word| *word & (PRESENT | MAPPED_ONCE) == PRESENT | MAPPED_ONCE).count();
    words.iter().any(|word| word & PRESENT != 0 && word & FRAME != 0).then_some(own)
}

/// How much of a mapping was used since the recorder reset that, in kB.
fn referenced(addr: *mut u8) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let from = text.find(&format!("{:x}-", addr.addr())).unwrap();
    let line = text[from..].lines().find_map(|line| line.strip_prefix("Referenced:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The child shares pages with its parent, and waits until the recorder has sampled them.
pub(crate) fn keeps_pages_that_it_shares() {
    // Between two pages that may not be used, so that it is a mapping of its own.
    let around = map((SHARED_PAGES + 2) * PAGE, libc::PROT_NONE, PRIVATE);
    // SAFETY: inside of the mapping that was just made.
    let addr = unsafe {
        let addr = around.add(PAGE);
        assert_eq!(libc::mprotect(addr.cast(), SHARED_PAGES * PAGE, READ_WRITE), 0);
        addr
    };
    for place in 0..SHARED_PAGES * PAGE {
        // SAFETY: inside of the mapping.
        unsafe { addr.add(place).write_volatile((place / PAGE + place % 1000) as u8) };
    }
    let status = wait_for(make_process(|| {
        for page in 0..SHARED_PAGES {
            // SAFETY: inside of the mapping.
            unsafe { addr.add(page * PAGE).read_volatile() };
        }
        if pages_of_its_own(addr).is_none() {
            end(NOT_PERMITTED);
        }
        while referenced(addr) > 0 {
            nap(5_000_000);
        }
        end(pages_of_its_own(addr).map_or(NOT_PERMITTED, |copied| copied as i32));
    }));
    leave(libc::WEXITSTATUS(status));
}
