//! The memfds of a program: made as descriptors that the program names.

use super::board::{Board, MOST_DATA, MOST_MEMFD_PAGES, Slot};
use super::file;
use super::raw::{Plain, open_as, plain, syscall};
use super::texts::query;
use crate::observation::Memfd;
use crate::program::names::{F_GET_SEALS, MEMFDS, MFD_HUGETLB, MOST_MADE, MOST_MEMFDS, SEEK_DATA, SEEK_HOLE};
use core::ffi::CStr;
use core::sync::atomic::Ordering::Relaxed;

const PAGE: u64 = 4096;
/// Names of the descriptors.
const OWN: [&CStr; MOST_MEMFDS] =
    [c"/proc/self/fd/250", c"/proc/self/fd/251", c"/proc/self/fd/252", c"/proc/self/fd/253"];

/// Closes what the calling process has inherited as descriptors of memfds.
pub(super) fn close_all() {
    let mut at = 0;
    while at < MOST_MEMFDS {
        plain(Plain::Close, u64::from(MEMFDS) + at as u64, 0);
        at += 1;
    }
}

/// [`Call::MemfdCreate`](crate::program::Call::MemfdCreate): returns 0 or an error.
pub(super) fn create(board: &Board, [name, flags, descriptor, ..]: [u64; 6]) -> i64 {
    // The name: as many letters.
    let mut word = 0;
    while word * 8 <= name {
        let left = name - word * 8;
        let letters = if left < 8 { (1 << (left * 8)) - 1 } else { u64::MAX };
        board.page[word as usize].store(0x6d6d_6d6d_6d6d_6d6d & letters, Relaxed);
        word += 1;
    }
    let name = board.page.as_ptr().addr() as u64;
    // SAFETY: the kernel reads the name, which ends with a zero on the board's page.
    let made = unsafe { syscall(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0]) };
    if made < 0 {
        return made;
    }
    if flags & MFD_HUGETLB == 0 {
        plain(Plain::Dup2, made.cast_unsigned(), descriptor);
        let count = board.made_count.load(Relaxed);
        let at = if count < MOST_MADE { count } else { MOST_MADE - 1 };
        board.made[at as usize].store(status(board, descriptor)[0], Relaxed);
        board.made_count.store(at + 1, Relaxed);
    }
    plain(Plain::Close, made.cast_unsigned(), 0);
    0
}

/// [`Call::Reopen`](crate::program::Call::Reopen): returns 0 or an error.
pub(super) fn reopen([of, descriptor, access, ..]: [u64; 6]) -> i64 {
    let at = (of as u32).wrapping_sub(MEMFDS) as usize;
    if at >= MOST_MEMFDS {
        return -i64::from(libc::EBADF);
    }
    let opened = open_as(OWN[at], access as i32, descriptor as u32);
    if opened < 0 { opened } else { 0 }
}

/// Inode, size and blocks of a file. All are 0 if it is not open.
fn status(board: &Board, descriptor: u64) -> [u64; 3] {
    /// Where they are among the words of the kernel's `struct stat`.
    const PLACES: [usize; 3] = [1, 6, 8];
    let words = &board.scratch[45..63];
    // SAFETY: the kernel writes to the words, which are as long as its struct.
    let told = unsafe { syscall(libc::SYS_fstat, [descriptor, words.as_ptr().addr() as u64, 0, 0, 0, 0]) };
    if told < 0 {
        return [0; 3];
    }
    [words[PLACES[0]].load(Relaxed), words[PLACES[1]].load(Relaxed), words[PLACES[2]].load(Relaxed)]
}

/// Which memfd of the program the mapping shows that was asked for last, from 1, or 0.
pub(super) fn shown(board: &Board) -> u64 {
    let words = &board.scratch[32..45];
    let (inode, count) = (words[query::INODE].load(Relaxed), board.made_count.load(Relaxed));
    let mut at = 0;
    while at < count && file::is_in_memory(board) {
        if board.made[at as usize].load(Relaxed) == inode {
            return u64::from(at) + 1;
        }
        at += 1;
    }
    0
}

/// Nothing is noted of any.
pub(super) fn forget(slot: &Slot) {
    let mut at = 0;
    while at < MOST_MEMFDS {
        slot.memfds[at].is_open.store(0, Relaxed);
        at += 1;
    }
}

/// Notes of each descriptor what is behind it.
pub(super) fn sum_up(board: &Board, slot: &Slot) {
    let mut at = 0;
    while at < MOST_MEMFDS {
        let descriptor = u64::from(MEMFDS) + at as u64;
        let seals = plain_three(libc::SYS_fcntl, [descriptor, F_GET_SEALS, 0]);
        if seals != -i64::from(libc::EBADF) {
            let raw = &slot.memfds[at];
            let [_, size, blocks] = status(board, descriptor);
            raw.is_open.store(1, Relaxed);
            raw.seals.store(seals, Relaxed);
            raw.size.store(size, Relaxed);
            raw.blocks.store(blocks, Relaxed);
            list_data(board, slot, at);
        }
        at += 1;
    }
}

/// A call whose arguments are numbers.
fn plain_three(call: i64, [first, second, third]: [u64; 3]) -> i64 {
    // SAFETY: `fcntl` and `lseek` as they are used here take no address.
    unsafe { syscall(call, [first, second, third, 0, 0, 0]) }
}

/// Lists where a memfd has data, and the sums of its pages.
fn list_data(board: &Board, slot: &Slot, at: usize) {
    let (raw, descriptor) = (&slot.memfds[at], u64::from(MEMFDS) + at as u64);
    let (mut count, mut sums, mut from) = (0, 0, 0);
    while count < MOST_DATA {
        let start = plain_three(libc::SYS_lseek, [descriptor, from, SEEK_DATA]);
        if start < 0 {
            break;
        }
        let end = plain_three(libc::SYS_lseek, [descriptor, start.cast_unsigned(), SEEK_HOLE]);
        let (start, end) = (start.cast_unsigned(), end.cast_unsigned());
        raw.data[count][0].store(start, Relaxed);
        raw.data[count][1].store(end, Relaxed);
        count += 1;
        from = start & !(PAGE - 1);
        while from < end && sums < MOST_MEMFD_PAGES {
            let Some(sum) = file::sum_of_page(board, descriptor, from) else { break };
            raw.sums[sums][0].store(from, Relaxed);
            raw.sums[sums][1].store(sum, Relaxed);
            sums += 1;
            from += PAGE;
        }
        from = end;
    }
    raw.data_count.store(count as u32, Relaxed);
    raw.sum_count.store(sums as u32, Relaxed);
}

/// Reads what was noted.
pub(super) fn read(slot: &Slot, seen: &mut [Option<Memfd>; MOST_MEMFDS]) {
    const BLOCK: u64 = 512;
    for (raw, seen) in slot.memfds.iter().zip(seen) {
        *seen = (raw.is_open.load(Relaxed) != 0).then(|| {
            let pairs = |pairs: &[[core::sync::atomic::AtomicU64; 2]], count: u32| {
                let pairs = pairs[..count as usize].iter();
                pairs.map(|pair| (pair[0].load(Relaxed), pair[1].load(Relaxed))).collect()
            };
            Memfd {
                seals: raw.seals.load(Relaxed),
                size: raw.size.load(Relaxed),
                allocated: raw.blocks.load(Relaxed) * BLOCK,
                data: pairs(&raw.data, raw.data_count.load(Relaxed)),
                sums: pairs(&raw.sums, raw.sum_count.load(Relaxed)),
            }
        });
    }
}
