//! How much of a large folio is swapped in for one page of it.
//!
//! For sequential access, swapping in the whole folio is one read and one fault. For random access it wastes
//! memory on unused pages. So each mapping remembers where it was last swapped in, and how large a folio was
//! allowed there. A page near the last one, within such a folio, allows twice as much the next time, any
//! other half as much. It starts at the maximum: folios of a new mapping are swapped in as they were swapped
//! out. With `MADV_HUGEPAGE` folios are always swapped in whole.

use crate::flags::VmFlags;
use quire_arch::{Order, PAGE_SHIFT, VirtAddr};
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// The swap-in state of one mapping: a heuristic, so nothing orders it. The number of the last page above the
/// bits of an order; 0 is nothing.
#[derive(Debug, Default)]
pub struct SwapInWindow(AtomicU64);

const ORDER_BITS: u32 = 4;
const ORDER_MASK: u64 = (1 << ORDER_BITS) - 1;

const _: () = assert!(Order::PMD.index() <= ORDER_MASK as usize);

impl SwapInWindow {
    /// The largest order of a folio for the page at `addr` in a mapping with `flags`.
    pub fn order(&self, addr: VirtAddr, flags: VmFlags) -> Order {
        if flags.contains(VmFlags::HUGEPAGE) {
            return Order::PMD;
        }
        let page = addr.0 >> PAGE_SHIFT;
        let word = self.0.load(Ordering::Relaxed);
        if word == 0 {
            self.note(page, Order::PMD);
            return Order::PMD;
        }
        let (last, before) = (word >> ORDER_BITS, Order::new((word & ORDER_MASK) as u8));
        let before = before.unwrap_or(Order::ZERO);
        let order = match page.abs_diff(last) {
            // The same fault once more.
            0 => return before,
            near if near <= before.pages() => before.larger().unwrap_or(before).min(Order::PMD),
            _ => before.smaller().unwrap_or(Order::ZERO),
        };
        self.note(page, order);
        order
    }

    fn note(&self, page: u64, order: Order) {
        self.0.store(page << ORDER_BITS | order.index() as u64, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn order(window: &SwapInWindow, page: u64) -> u8 {
        window.order(VirtAddr(page << PAGE_SHIFT), VmFlags::empty()).get()
    }

    #[test]
    fn sequential_faults_get_whole_folios() {
        let window = SwapInWindow::default();
        assert_eq!([1024, 1536, 2048, 2560].map(|page| order(&window, page)), [9; 4], "upwards");
        assert_eq!([2048, 1536].map(|page| order(&window, page)), [9; 2], "downwards");
    }

    #[test]
    fn random_faults_get_less_each_time_and_near_ones_get_more_again() {
        let window = SwapInWindow::default();
        let jumps: Vec<_> = (1..13).map(|nth| order(&window, nth * 10_000)).collect();
        assert_eq!(jumps, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0]);
        assert_eq!(order(&window, 5000), 0);
        assert_eq!(order(&window, 5000), 0, "the same page says nothing");
        let (mut page, mut orders) = (5001, Vec::new());
        while page < 8000 {
            let order = order(&window, page);
            orders.push(order);
            // The next fault is past the aligned block that was read.
            page = (page & !((1 << order) - 1)) + (1 << order);
        }
        assert!(orders.is_sorted() && orders.last() == Some(&9), "{orders:?}");
        assert_eq!(order(&window, 100), 8);
    }

    #[test]
    fn folios_of_madv_hugepage_are_swapped_in_whole() {
        let window = SwapInWindow::default();
        let orders =
            (1..13).map(|nth| window.order(VirtAddr((nth * 10_000) << PAGE_SHIFT), VmFlags::HUGEPAGE));
        assert!(orders.into_iter().all(|order| order == Order::PMD));
    }
}
