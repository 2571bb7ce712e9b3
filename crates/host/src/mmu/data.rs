//! Program data in the machine's RAM.
//!
//! Threads of a program race with each other, and the Rust compiler must not assume that they do not. So
//! every program access is made of relaxed atomic accesses to the same aligned 8-byte words: a shorter read
//! takes its part of a word, a shorter write merges its part by compare-exchange (so that, as on hardware,
//! the neighbouring bytes keep what other threads write at the same time). No accesses of mixed sizes, no
//! data race. An access that spans words is not atomic as a whole.

use quire_sync::atomic::raw::{AtomicU64, Ordering};

const WORD: usize = 8;

/// The word that holds the byte at `at`, and the byte's place in it.
///
/// # Safety
///
/// `at` points into RAM of the arena that outlives the result and that is accessed as program data.
unsafe fn word<'a>(at: *mut u8) -> (&'a AtomicU64, usize) {
    let place = at.addr() % WORD;
    // SAFETY: RAM is page-granular, so the aligned word around a byte of it is RAM too.
    (unsafe { AtomicU64::from_ptr(at.wrapping_sub(place).cast()) }, place)
}

/// Copies program data to `into`.
///
/// # Safety
///
/// The `into.len()` bytes at `from` lie in one page of RAM that stays the program's during the call.
pub(crate) unsafe fn read(from: *mut u8, into: &mut [u8]) {
    let (head, rest) = into.split_at_mut(bytes_to_word(from).min(into.len()));
    let mut at = from.wrapping_add(head.len());
    // SAFETY: the caller guarantees the bytes of the head, which lie in one word.
    unsafe { read_part(from, head) };
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    for bytes in words {
        // SAFETY: the word is one that the caller guarantees.
        *bytes = unsafe { read_word(at) }.to_ne_bytes();
        at = at.wrapping_add(WORD);
    }
    // SAFETY: as for the head.
    unsafe { read_part(at, tail) };
}

/// Copies `data` to the program's memory.
///
/// # Safety
///
/// The `data.len()` bytes at `to` lie in one page of RAM that stays the program's during the call.
pub(crate) unsafe fn write(to: *mut u8, data: &[u8]) {
    let (head, rest) = data.split_at(bytes_to_word(to).min(data.len()));
    // SAFETY: the caller guarantees the bytes of the head, which lie in one word.
    unsafe { write_part(to, head) };
    let mut at = to.wrapping_add(head.len());
    let (words, tail) = rest.as_chunks::<WORD>();
    for &bytes in words {
        // SAFETY: the word is one that the caller guarantees.
        unsafe { write_word(at, u64::from_ne_bytes(bytes)) };
        at = at.wrapping_add(WORD);
    }
    // SAFETY: as for the head.
    unsafe { write_part(at, tail) };
}

/// Bytes from `at` to the next word, 0 if a word starts there.
fn bytes_to_word(at: *mut u8) -> usize {
    at.addr().wrapping_neg() % WORD
}

/// [`read`] within one word.
///
/// # Safety
///
/// As for `read`; the bytes lie in one word.
unsafe fn read_part(from: *mut u8, into: &mut [u8]) {
    if !into.is_empty() {
        // SAFETY: the caller's promise.
        let (word, place) = unsafe { word(from) };
        let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        into.copy_from_slice(&bytes[place..place + into.len()]);
    }
}

/// [`write`] within one word.
///
/// # Safety
///
/// As for `write`; the bytes lie in one word.
unsafe fn write_part(to: *mut u8, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    // SAFETY: the caller's promise.
    let (word, place) = unsafe { word(to) };
    let mut old = word.load(Ordering::Relaxed);
    loop {
        let mut bytes = old.to_ne_bytes();
        bytes[place..place + data.len()].copy_from_slice(data);
        let merged = u64::from_ne_bytes(bytes);
        match word.compare_exchange_weak(old, merged, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => old = now,
        }
    }
}

/// Loads the aligned word at `from`.
///
/// # Safety
///
/// As for [`read`] with 8 bytes, aligned.
#[inline]
pub(crate) unsafe fn read_word(from: *mut u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { word(from).0.load(Ordering::Relaxed) }
}

/// Stores the aligned word at `to`.
///
/// # Safety
///
/// As for [`write`] with 8 bytes, aligned.
#[inline]
pub(crate) unsafe fn write_word(to: *mut u8, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { word(to).0.store(value, Ordering::Relaxed) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_words_leave_their_neighbours_alone() {
        let mut memory = [u64::from_ne_bytes([0xee; WORD]); 4];
        let at: *mut u8 = memory.as_mut_ptr().cast();
        for start in 0..WORD {
            for len in 0..=WORD * 3 - start {
                let data: Vec<u8> = (0..len as u8).collect();
                let mut back = vec![0; len + 1];
                // SAFETY: the bytes lie in `memory`, which only this test uses.
                unsafe {
                    write(at.add(start), &[0xee; WORD * 3][..len]);
                    write(at.add(start), &data);
                    read(at.add(start), &mut back);
                }
                assert_eq!(back[..len], data[..]);
                assert_eq!(back[len], 0xee);
                // SAFETY: the bytes lie in `memory`, which only this test uses.
                unsafe { write(at.add(start), &[0xee; WORD * 3][..len]) };
            }
        }
    }
}
