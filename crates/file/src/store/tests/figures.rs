//! What a store costs in nodes.

use super::support::{Cpu, Nodes};
use crate::store::{FolioStore, InsertError};
use crate::{Entry, PageIndex, Stored};
use quire_arch::{Order, Pfn};

/// Inserts folios of `order` from the first page on, and returns the bytes of nodes. Then removes them.
fn bytes(order: Order, folios: u64) -> u64 {
    let (store, nodes) = (FolioStore::<Cpu>::new(), Nodes::new(1));
    let mut reserve = nodes.reserve();
    let start = |nth: u64| PageIndex::new(nth * order.pages()).unwrap();
    for nth in 0..folios {
        let new = Stored { start: start(nth), order, entry: Entry::Folio(Pfn(nth)) };
        loop {
            // SAFETY: all changes of the store use these nodes.
            match unsafe { store.lock(&nodes) }.insert(new, &mut reserve) {
                Err(InsertError::NeedsNodes(needs)) => reserve.fill(needs).unwrap(),
                result => break assert_eq!(result, Ok(None)),
            }
        }
    }
    drop(reserve);
    let mut bytes = 0;
    // SAFETY: all changes of the store use these nodes.
    let mut locked = unsafe { store.lock(&nodes) };
    let wide = locked.figures().nodes;
    bytes += wide * size_of::<crate::Wide>() as u64;
    for nth in 0..folios {
        locked.remove(start(nth)).unwrap();
    }
    assert_eq!(locked.figures().nodes, 0);
    bytes
}

/// A file of one folio has no node, whatever its order.
#[test]
fn a_file_of_one_folio_has_no_node() {
    for order in Order::ALL {
        assert_eq!(bytes(order, 1), 0);
    }
}

/// 10 bytes for a page of 4 KiB and for a folio of 2 MiB, if each node is as large as the larger kind.
#[test]
fn a_page_and_a_huge_folio_cost_ten_bytes() {
    for order in [Order::ZERO, Order::PMD] {
        let folios = 1 << 15;
        let bytes = bytes(order, folios);
        assert!(bytes * 10 <= folios * 104, "{bytes} bytes for {folios} folios of {order:?}");
    }
}
