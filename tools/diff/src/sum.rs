//! Checksums of pages.

/// The checksum of words that come in fours. The four are summed up side by side: large pages make much to
/// sum up.
pub(crate) struct Sum([u64; 4]);

impl Sum {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self([0; 4])
    }

    /// Adds four words. The order matters.
    #[inline(always)]
    pub(crate) const fn add(&mut self, words: [u64; 4]) {
        let [a, b, c, d] = self.0;
        self.0 = [mix(a, words[0]), mix(b, words[1]), mix(c, words[2]), mix(d, words[3])];
    }

    #[inline(always)]
    pub(crate) const fn finish(self) -> u64 {
        let [a, b, c, d] = self.0;
        mix(mix(mix(a, b), c), d)
    }
}

#[inline(always)]
const fn mix(sum: u64, word: u64) -> u64 {
    (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The checksum of a page given as bytes.
pub(crate) fn of_page(page: &[u8; 4096]) -> u64 {
    let (words, _) = page.as_chunks::<8>();
    let (fours, _) = words.as_chunks::<4>();
    let mut sum = Sum::new();
    for four in fours {
        sum.add(four.map(u64::from_le_bytes));
    }
    sum.finish()
}
