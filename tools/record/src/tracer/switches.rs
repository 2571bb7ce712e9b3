//! How long the context switch from the recorder to a stopped thread and back takes.
//!
//! Measured is the time from the resumption of a thread at the entry of a call to the recorder's notice of
//! its end. The fastest of a few such times are those of calls that do next to nothing.

/// Of this many times in a row the shortest counts.
const ROW: u32 = 16;

/// The time of a switch to a thread and back, from many calls.
#[derive(Debug, Default)]
pub(super) struct Switches {
    /// The shortest of the current row, and how many it has.
    shortest: u64,
    in_row: u32,
    /// The sum of the shortest of the rows before, and how many rows.
    sum: u64,
    rows: u64,
}

impl Switches {
    /// A thread was in a call for so many nanoseconds.
    pub(super) fn note(&mut self, ns: u64) {
        self.shortest = if self.in_row == 0 { ns } else { self.shortest.min(ns) };
        self.in_row += 1;
        if self.in_row == ROW {
            self.sum += self.shortest;
            (self.rows, self.in_row) = (self.rows + 1, 0);
        }
    }

    /// The mean of a switch there and back, in nanoseconds; that of the first calls if there are only a few.
    pub(super) fn mean(&self) -> u64 {
        self.sum.checked_div(self.rows).unwrap_or(self.shortest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_calls_do_not_count() {
        let mut switches = Switches::default();
        assert_eq!(switches.mean(), 0);
        for ns in [900, 500, 700] {
            switches.note(ns);
        }
        assert_eq!(switches.mean(), 500);
        for row in 0..4 {
            for call in 0..u64::from(ROW) - if row == 0 { 3 } else { 0 } {
                switches.note(1000 * (call + 1));
            }
        }
        assert_eq!(switches.mean(), (500 + 3 * 1000) / 4);
    }
}
