//! Checksums of any part of the bytes ahead, each byte of which is added up once.
//!
//! A file may hold many heads, each of which claims that all of the next megabytes are its contents. So the
//! sum up to every 256th byte is kept, and the sum of a part is what its end has and its beginning has not.

use crc32fast::Hasher;
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes between two sums that are kept.
pub(super) const STEP: u64 = 256;

/// Sums of all bytes from one offset on.
#[derive(Debug)]
pub(super) struct Sums {
    /// Where they begin.
    start: u64,
    /// The sum up to each step that may still be asked for.
    kept: VecDeque<u32>,
    /// Steps before these.
    gone: u64,
    /// The sum up to the last kept step.
    last: Hasher,
}

impl Sums {
    /// Of what comes after `start`.
    pub(super) fn new(start: u64) -> Self {
        Self { start, kept: VecDeque::from([0]), gone: 0, last: Hasher::new() }
    }

    /// Where the last kept step ends.
    fn last_step(&self) -> u64 {
        self.start + (self.gone + self.kept.len() as u64 - 1) * STEP
    }

    /// The sum of the bytes at the offsets `range` of the file; `buffer` has those from `offset` on, at least
    /// [`STEP`] before the range that are not before the start. Ranges begin in ascending order. Also returns
    /// how many bytes were added up for that.
    pub(super) fn of(&mut self, buffer: &[u8], offset: u64, range: Range<u64>) -> (u32, usize) {
        if self.last_step() < offset {
            // What lies between was passed over, and is not in the buffer any more.
            *self = Self::new(range.start);
        }
        let place = |at: u64| (at - offset) as usize;
        let step_of = |at: u64| (at - self.start) / STEP;
        let mut checked = 0;
        // Nothing before this range is asked for any more.
        while self.gone < step_of(range.start) && self.kept.len() > 1 {
            self.kept.pop_front();
            self.gone += 1;
        }
        let mut end = self.last_step();
        while end + STEP <= range.end {
            self.last.update(&buffer[place(end)..place(end + STEP)]);
            self.kept.push_back(self.last.clone().finalize());
            end += STEP;
            checked += STEP as usize;
        }
        let mut up_to = |at: u64| {
            let step = step_of(at);
            let start = self.start + step * STEP;
            let sum = self.kept[(step - self.gone) as usize];
            let rest = &buffer[place(start)..place(at)];
            checked += rest.len();
            let mut hasher = Hasher::new_with_initial_len(sum, step * STEP);
            hasher.update(rest);
            hasher.finalize()
        };
        let (first, last) = (up_to(range.start), up_to(range.end));
        // The sum of the first part moved on by as many zeros as the second part has bytes.
        let mut moved = Hasher::new_with_initial_len(first, 1);
        moved.combine(&Hasher::new_with_initial_len(0, range.end - range.start));
        (moved.finalize() ^ last, checked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_a_part_is_that_of_its_bytes() {
        let bytes: Vec<u8> = (0..5000_u32).map(|number| ((number * number) >> 3) as u8).collect();
        let mut sums = Sums::new(7);
        let mut all = 0;
        for at in [0, 1, 255, 256, 300, 1000, 1001, 1024, 2049, 4000, 4990_u64] {
            for to in [36, 41, 300, 900, 5000] {
                let (from, to) = ((at + 36).min(5000), (at + to).min(5000));
                let first = (at - at % 100).saturating_sub(STEP);
                let (sum, checked) = sums.of(&bytes[first as usize..], 7 + first, 7 + from..7 + to);
                assert_eq!(sum, crc32fast::hash(&bytes[from as usize..to as usize]), "{from}..{to}");
                all += checked as u64;
            }
        }
        assert!(all < 5000 + 66 * 2 * STEP, "{all}");
    }
    /// Bytes that no frame claims are not added up, and have left the buffer.
    #[test]
    fn a_part_after_bytes_that_are_gone_has_its_own_sum() {
        let bytes: Vec<u8> = (0..5000_u32).map(|number| ((number * number) >> 3) as u8).collect();
        let mut sums = Sums::new(0);
        for (first, from, to) in [(0, 0, 600), (3000, 4000, 4100), (3000, 4001, 4900), (4990, 4995, 5000)] {
            let (sum, _) = sums.of(&bytes[first as usize..], first, from..to);
            assert_eq!(sum, crc32fast::hash(&bytes[from as usize..to as usize]), "{from}..{to}");
        }
    }
}
