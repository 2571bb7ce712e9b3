//! Nanoseconds for each allocation and free of an object, from a slab cache and from the heap, with one
//! thread.
//!
//! `cargo bench -p quire-slab`. Each figure is the minimum and the median of many rounds, so that what else
//! runs on the machine shows as distance between the two.

#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

#[allow(dead_code, reason = "shared with the tests")]
#[path = "../../frame/tests/common/mod.rs"]
mod common;

use common::{Machine, frames};
use quire_arch::Platform;
use quire_frame::{Frames, PcpTechnique};
use quire_slab::{Heap, SlabCache};
use std::alloc::Layout;
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 400;
/// 512 MiB.
const FRAMES: u64 = 1 << 17;

/// Nanoseconds for each of `count` operations in one round.
fn per_operation(count: usize, round: impl FnOnce()) -> f64 {
    let start = Instant::now();
    round();
    start.elapsed().as_nanos() as f64 / count as f64
}

fn print(name: &str, mut figures: Vec<f64>) {
    figures.sort_by(f64::total_cmp);
    println!("{name:<34} min {:>7.1}  median {:>7.1}", figures[0], figures[figures.len() / 2]);
}

fn slab(frames: &Frames<Machine>) {
    let cache = SlabCache::<[u64; 15], Machine>::new(frames, &frames.platform().pin(), "bench").unwrap();
    let count = 10_000;
    let figures = (0..ROUNDS).map(|_| {
        per_operation(count, || {
            for _ in 0..count {
                let pin = frames.platform().pin();
                let object = black_box(cache.allocate(frames, &pin, [1; 15]).unwrap());
                // SAFETY: allocated just above.
                unsafe { cache.free(frames, &pin, object) };
            }
        })
    });
    print("slab, 128 bytes: pair", figures.collect());
}

fn heap(frames: &Frames<Machine>) {
    let heap = Heap::new(frames, &frames.platform().pin()).unwrap();
    let count = 10_000;
    for size in [64, 4096, 16 << 10] {
        let layout = Layout::from_size_align(size, 8).unwrap();
        let figures = (0..ROUNDS).map(|_| {
            per_operation(count, || {
                for _ in 0..count {
                    let layout = black_box(layout);
                    let pin = frames.platform().pin();
                    let object = black_box(heap.allocate(frames, &pin, layout).unwrap());
                    // SAFETY: allocated just above.
                    unsafe { heap.free(frames, &pin, object, layout) };
                }
            })
        });
        print(&format!("heap, {size} bytes: pair"), figures.collect());
    }
}

fn main() {
    for pcp in PcpTechnique::ALL {
        println!("{pcp:?}, ns for each operation:");
        let frames = frames(&[(0, FRAMES)], 1, pcp);
        slab(&frames);
        heap(&frames);
    }
}
