//! Nanoseconds of a page's way out and in, without a fault around it: pages of zeros, with one thread.
//!
//! `cargo bench -p quire-swap`.

#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

#[allow(dead_code, reason = "shared with the tests")]
#[path = "../tests/common/mod.rs"]
mod common;

use common::{TestDevice, fill, folio, order, swap};
use quire_arch::Order;
use quire_swap::{Inserted, SwapOnOptions, SwapTechnique};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 200;
const WAYS: u32 = 2000;

fn ways(technique: SwapTechnique, order: Order) {
    let swap = swap(1 << 13, 1, technique);
    swap.devices().swapon(TestDevice::new(1 << 16), SwapOnOptions::default()).unwrap();
    let (head, pages) = (folio(&swap, order), order.pages() as u32);
    for nth in 0..order.pages() {
        fill(&swap, head.offset(nth), 0);
    }
    let mut parts = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..WAYS {
            let slot = black_box(swap.allocator().add_folio(head, 0).unwrap());
            swap.counts().add_counts(slot, pages);
            let _ = swap.counts().drop_counts(slot, pages);
            assert!(swap.cache().remove_unnamed(head) && !swap.frames().known(head).put(1));
        }
        parts[0].push(start.elapsed().as_nanos() as f64 / f64::from(WAYS));
        let slot = swap.allocator().add_folio(head, 0).unwrap();
        swap.counts().add_counts(slot, pages);
        let start = Instant::now();
        for _ in 0..WAYS {
            let _ = swap.io().write_folio(head);
            assert!(swap.cache().discard_failed(head) && !swap.frames().known(head).put(1));
            let Inserted::Won { zero, .. } = swap.cache().insert(slot, head) else {
                panic!("another folio is there")
            };
            assert_eq!(zero, technique.knows_zeros());
        }
        parts[1].push(start.elapsed().as_nanos() as f64 / f64::from(WAYS));
        let _ = swap.counts().drop_counts(slot, pages);
        assert!(swap.cache().remove_unnamed(head) && !swap.frames().known(head).put(1));
    }
    for (name, mut figures) in
        ["add, name, unname, remove", "write zeros, leave, insert"].into_iter().zip(parts)
    {
        figures.sort_by(f64::total_cmp);
        let (least, median) = (figures[0], figures[figures.len() / 2]);
        println!("{:<8} order {order}: {name:<28} min {least:>8.1}  median {median:>8.1}", technique.name());
    }
}

fn main() {
    for technique in SwapTechnique::ALL {
        for order in [0, 4, 9].map(order) {
            ways(technique, order);
        }
    }
}
