//! Nanoseconds for each allocation and free: pairs, in bulk, and shuffled, for orders 0, 3 and 9, with one
//! thread.
//!
//! `cargo bench -p quire-frame`. Each figure is the minimum and the median of many rounds, so that what else
//! runs on the machine shows as distance between the two.

#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

#[allow(dead_code, reason = "shared with the tests")]
#[path = "../tests/common/mod.rs"]
mod common;

use common::{Machine, Random, TEST, frames, order};
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::{AllocRequest, FrameChain, Frames, PcpTechnique};
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

fn get(frames: &Frames<Machine>, pin: &Pin<'_, Machine>, order: Order) -> Pfn {
    frames.allocate(pin, AllocRequest::new(order, TEST)).unwrap()
}

fn pairs(frames: &Frames<Machine>, order: Order) {
    let count = 10_000;
    let figures = (0..ROUNDS).map(|_| {
        per_operation(count, || {
            for _ in 0..count {
                let pin = frames.platform().pin();
                let pfn = black_box(get(frames, &pin, order));
                frames.free(&pin, pfn, order).unwrap();
            }
        })
    });
    print(&format!("order {order}: get+put pair"), figures.collect());
}

fn bulk(frames: &Frames<Machine>, order: Order, shuffled: bool) {
    let count = (FRAMES / 2 / order.pages()).min(10_000) as usize;
    let mut random = Random(9);
    let (mut gets, mut puts) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut all = Vec::with_capacity(count);
        gets.push(per_operation(count, || {
            for _ in 0..count {
                let pin = frames.platform().pin();
                all.push(get(frames, &pin, order));
            }
        }));
        if shuffled {
            for last in (1..all.len()).rev() {
                all.swap(last, random.below(last as u64 + 1) as usize);
            }
        }
        puts.push(per_operation(count, || {
            while let Some(pfn) = all.pop() {
                let pin = frames.platform().pin();
                frames.free(&pin, pfn, order).unwrap();
            }
        }));
    }
    let kind = if shuffled { "shuffled" } else { "bulk" };
    print(&format!("order {order}: {kind} get"), gets);
    print(&format!("order {order}: {kind} put"), puts);
}

fn chains(frames: &Frames<Machine>) {
    let count = 4096;
    let figures = (0..ROUNDS).map(|_| {
        let pin = frames.platform().pin();
        let all: Vec<Pfn> = (0..count).map(|_| get(frames, &pin, Order::ZERO)).collect();
        per_operation(count, || {
            let mut chain = FrameChain::new();
            for pfn in all {
                frames.gather(&mut chain, pfn, Order::ZERO).unwrap();
            }
            frames.free_chain(&pin, chain);
        })
    });
    print("order 0: gather and free a chain", figures.collect());
}

fn main() {
    for pcp in PcpTechnique::ALL {
        println!("{pcp:?}, ns for each operation:");
        for number in [0, 3, 9] {
            let frames = frames(&[(0, FRAMES)], 1, pcp);
            pairs(&frames, order(number));
            bulk(&frames, order(number), false);
            bulk(&frames, order(number), true);
        }
        let frames = frames(&[(0, FRAMES)], 1, pcp);
        chains(&frames);
    }
}
