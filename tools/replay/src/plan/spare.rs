//! What a machine needs beside the pages of programs.

use super::block::{Demand, order_of};

/// The most that it is: slabs, lists, Linux's watermarks, and what the plan did not see.
pub(crate) const SPARE_BYTES: u64 = 64 << 20;
/// Slabs and lists of a machine on which little happens.
const LEAST_BYTES: u64 = 192 << 10;
/// Lists and counters of a CPU.
const CPU_BYTES: u64 = 32 << 10;
/// Pages of an address space beside its mappings and the tables that the plan follows.
const SPACE_PAGES: u64 = 2;
/// Large folios for which there is room beside all others: the machine's own pages lie in blocks of their
/// size, and khugepaged takes one before it gives others back.
pub(super) const FOLIOS: u64 = 4;

/// What that depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spare {
    cpus: u64,
    /// The most address spaces at once.
    spaces: u64,
    /// Whether there was memory where a touch can bring in a large folio: not advised, and advised.
    large: [bool; 2],
}

impl Spare {
    /// Of a machine with so many CPUs.
    pub(super) fn of(cpus: usize) -> Self {
        Self { cpus: cpus as u64, ..Self::default() }
    }

    /// So many address spaces live, and need this.
    pub(super) fn note(&mut self, spaces: usize, demands: [&Demand; 2]) {
        self.spaces = self.spaces.max(spaces as u64);
        for demand in demands {
            for (seen, pages) in self.large.iter_mut().zip(&demand.large) {
                *seen |= pages.iter().any(|pages| *pages > 0);
            }
        }
    }

    /// Bytes beside so many pages and an eighth more, where touches bring in folios in these ways. In
    /// proportion to the pages: what the plan did not see is so, too.
    pub(super) fn bytes(&self, pages: u64, ways: [usize; 2]) -> u64 {
        let ways = ways.into_iter().zip(self.large).filter(|(_, large)| *large).map(|(way, _)| way);
        let order = order_of(ways.max().unwrap_or(0));
        let folios = if order > 0 { FOLIOS << order } else { 0 };
        let own = LEAST_BYTES + self.cpus * CPU_BYTES + (self.spaces * SPACE_PAGES + folios) * 4096;
        let part = pages / 8 * 3 * 4096;
        (part + own + watermark(part + own + pages * 4096)).min(SPARE_BYTES)
    }
}

/// Bytes that stay free on a machine with so many: the high watermark is half more than the square root of 16
/// times the size in KiB.
fn watermark(bytes: u64) -> u64 {
    const LEAST_KIB: u64 = 128;
    let kib = (bytes >> 10).saturating_mul(16).isqrt().max(LEAST_KIB);
    (kib + kib / 2) << 10
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::block::WAYS;

    #[test]
    fn a_small_machine_has_little_beside_its_pages_and_a_large_one_64_mib() {
        let spare = Spare::of(2);
        let kib = |pages| spare.bytes(pages, [0, 0]) >> 10;
        assert_eq!(kib(0), 192 + 2 * 32 + 192);
        assert!(kib(300) < 300 * 4 && kib(100) > 400);
        assert_eq!([1 << 17, 1 << 30].map(|pages| spare.bytes(pages, [9, 9])), [SPARE_BYTES; 2]);
        // It grows with the CPUs, the spaces, and the folios that come in.
        assert!(Spare::of(64).bytes(0, [0, 0]) >= spare.bytes(0, [0, 0]) + 62 * CPU_BYTES);
        let mut many = spare;
        let large = Demand { large: [[0; WAYS], [1; WAYS]], ..Demand::default() };
        many.note(1000, [&Demand::default(), &large]);
        assert!(many.bytes(0, [0, 0]) >= spare.bytes(0, [0, 0]) + (8000 << 10));
        assert_eq!(many.bytes(0, [9, 0]), many.bytes(0, [0, 0]), "where it is not advised there is none");
        assert!(many.bytes(0, [0, 9]) >= many.bytes(0, [0, 0]) + (8 << 20));
    }
}
