//! How long a program is stalled by page-out and refaults: an estimate.

use crate::swap::LimitSwap;
use quire_measure::Cost;
use quire_replay::PressureFigures;

/// The cost of a page for the thread that waits for it, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
struct PageCosts {
    /// A major fault.
    fault: Cost,
    /// A page that is paged out: under a limit the thread that needs memory finds and writes it.
    out: Cost,
}

const fn cost(median: f64, min: f64, max: f64) -> Cost {
    Cost { median, min, max }
}

/// A page that is compressed, and comes back. Measured: what the programs of scripts/validate-limits.py need
/// more of the processor within a limit, divided by the pages; least for pages of zeros, most where threads
/// wait for each other. docs/advise.md says so.
const COMPRESSED: PageCosts = PageCosts { fault: cost(6e3, 3e3, 12e3), out: cost(12e3, 6e3, 20e3) };
/// By zstd instead (level 3): 30 to 50 us more to compress a page, 10 us more to bring it back, measured in
/// user space.
const ZSTD: PageCosts = PageCosts { fault: cost(15e3, 8e3, 25e3), out: cost(45e3, 25e3, 75e3) };
/// A disk: an SSD in the middle, the fastest and a disk with a seek time at the ends. Writes go on while the
/// program runs: what is waited for is the throughput.
const DISK: PageCosts = PageCosts { fault: cost(100e3, 60e3, 8e6), out: cost(15e3, 5e3, 40e3) };

/// The median, the least and the most that such figures cost with this swap, in nanoseconds: first what is
/// paid once, for pages that go out and stay out, then what comes again and again, for major faults and the
/// pages that make room for them.
pub(super) fn estimate(swap: LimitSwap, figures: &PressureFigures) -> [[f64; 3]; 2] {
    let costs = match swap {
        LimitSwap::Zram | LimitSwap::Zswap => COMPRESSED,
        LimitSwap::ZramZstd => ZSTD,
        LimitSwap::Disk => DISK,
    };
    let ends = |cost: Cost| [cost.median, cost.min, cost.max];
    let (fault, out) = (ends(costs.fault), ends(costs.out));
    let again = figures.pages_out.min(figures.pages_in);
    let once = figures.pages_out - again;
    let part = |faults: u64, pages: u64| {
        std::array::from_fn(|end| faults as f64 * fault[end] + pages as f64 * out[end])
    };
    [part(0, once), part(figures.major_faults, again)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_and_pages_out_are_waited_for() {
        let figures =
            PressureFigures { major_faults: 10, pages_in: 10, pages_out: 100, ..PressureFigures::default() };
        let [once, again] = estimate(LimitSwap::Zram, &figures);
        // 90 pages stay out.
        assert_eq!(once[0], 90.0 * COMPRESSED.out.median);
        let [median, least, most] = again;
        assert_eq!(median, 10.0 * COMPRESSED.fault.median + 10.0 * COMPRESSED.out.median);
        assert!(least < median && median < most);
        assert_eq!(estimate(LimitSwap::Zswap, &figures), [once, again]);
        let [zstd, disk] = [LimitSwap::ZramZstd, LimitSwap::Disk].map(|swap| estimate(swap, &figures)[1][0]);
        assert!(median < zstd && median < disk);
    }
}
