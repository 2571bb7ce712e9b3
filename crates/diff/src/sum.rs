//! Checksums of pages.

/// Adds a word to a checksum. The order of the words matters.
#[inline(always)]
pub(crate) const fn add(sum: u64, word: u64) -> u64 {
    (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The checksum of a page given as bytes.
pub(crate) fn of_page(page: &[u8; 4096]) -> u64 {
    let (words, _) = page.as_chunks::<8>();
    words.iter().fold(0, |sum, word| add(sum, u64::from_le_bytes(*word)))
}
