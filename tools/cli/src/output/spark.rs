//! Small drawings in the tables of a terminal.

use std::io::IsTerminal;

/// Whether tables may have drawings: on a terminal, unless that is not wanted.
pub(crate) fn may_draw(plain: bool) -> bool {
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !plain && !no_colour && std::io::stdout().is_terminal()
}

/// Letters of the table's column.
const WIDTH: usize = 16;
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A value over time as a line of blocks: the highest of `values`, which have times, in each stretch of time;
/// `most` is the highest block.
pub(crate) fn over_time(values: &[(u64, u64)], most: u64) -> String {
    let end = values.last().map_or(1, |&(time, _)| time).max(1);
    let mut highest = [None; WIDTH];
    for &(time, value) in values {
        let place = (u128::from(time) * WIDTH as u128 / (u128::from(end) + 1)) as usize;
        highest[place] = highest[place].max(Some(value));
    }
    let mut before = 0;
    let blocks = highest.map(|value| {
        before = value.unwrap_or(before);
        let eighths = u128::from(before) * BLOCKS.len() as u128 / u128::from(most.max(1));
        BLOCKS[(eighths as usize).min(BLOCKS.len() - 1)]
    });
    blocks.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_the_highest_block() {
        let line = over_time(&[(0, 0), (50, 80), (55, 40), (100, 0)], 80);
        assert_eq!(line.chars().count(), WIDTH);
        assert!(line.starts_with('▁') && line.contains('█') && line.ends_with('▁'), "{line}");
        assert_eq!(over_time(&[], 0).chars().count(), WIDTH);
    }
}
