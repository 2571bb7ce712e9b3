//! Nanoseconds for each page that goes to compressed RAM and comes back, by how it looks, and how densely
//! pages are packed.
//!
//! `cargo bench -p quire-swap`. Each figure is the minimum and the median of many rounds. With a kind of page
//! and the numbers of rounds of reading and writing as arguments it only runs those, for a tool that counts
//! instructions.

#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

#[path = "../tests/pages/mod.rs"]
mod common;

use common::{Look, Machine, Page, Random, frame, frames, io, write_frame};
use quire_arch::Pfn;
use quire_frame::{Frames, PcpTechnique};
use quire_swap::{CompressedRam, DeviceMemory, Direction, Lz4, SwapDevice};
use std::time::Instant;

type Zram = CompressedRam<Machine, Lz4>;

const KINDS: [(&str, Look); 6] = [
    ("zero", Look::Zero),
    ("pattern", Look::Pattern),
    ("regular", Look::Mixed(0)),
    ("half", Look::Mixed(3)),
    ("three quarters", Look::Mixed(5)),
    ("random", Look::Mixed(8)),
];
const PAGES: u64 = 64;

struct Bench {
    frames: Frames<Machine>,
    device: Zram,
    pages: Vec<Pfn>,
    back: Pfn,
}

impl Bench {
    fn new(look: Look) -> Self {
        let frames = frames(&[(1, 8192)], 1, PcpTechnique::default());
        let device = Zram::new(&frames, 4096, Lz4).unwrap();
        let mut random = Random(1);
        let pages: Vec<_> = (0..PAGES).map(|_| frame(&frames)).collect();
        pages.iter().for_each(|&pfn| write_frame(&frames, pfn, &look.page(&mut random)));
        let back = frame(&frames);
        Self { frames, device, pages, back }
    }

    fn write(&self) {
        for (slot, &pfn) in (0..).zip(&self.pages) {
            io(&self.frames, &self.device, Direction::Write, slot, pfn).unwrap();
        }
    }

    fn read(&self) {
        (0..PAGES).for_each(|slot| io(&self.frames, &self.device, Direction::Read, slot, self.back).unwrap());
    }
}

fn print(name: &str, what: &str, mut figures: Vec<f64>) {
    figures.sort_by(f64::total_cmp);
    println!("{name:<16}{what:<8} min {:>8.1}  median {:>8.1}", figures[0], figures[figures.len() / 2]);
}

fn time(round: impl Fn()) -> f64 {
    let start = Instant::now();
    round();
    start.elapsed().as_nanos() as f64 / PAGES as f64
}

fn density() {
    let frames = frames(&[(1, 1 << 16)], 1, PcpTechnique::default());
    let device = Zram::new(&frames, 1 << 15, Lz4).unwrap();
    let page = frame(&frames);
    let mut random = Random(7);
    for slot in 0..1 << 15 {
        let contents: Page = Look::Mixed(random.below(6)).page(&mut random);
        write_frame(&frames, page, &contents);
        io(&frames, &device, Direction::Write, slot, page).unwrap();
    }
    let print = |when: &str| {
        let numbers = device.statistics();
        let waste = numbers.mem_used_total as f64 / numbers.compr_data_size as f64 - 1.0;
        println!(
            "{when}: {} pages, {} bytes compressed, {} used: {:.1} % more",
            numbers.orig_data_size / 4096,
            numbers.compr_data_size,
            numbers.mem_used_total,
            waste * 100.0
        );
    };
    print("mixed pages");
    (0..1 << 15)
        .filter(|_| random.below(3) > 0)
        .for_each(|slot| device.freed(DeviceMemory::new(&frames), slot, 1));
    print("two thirds freed");
    let start = Instant::now();
    let freed = device.store().compact(&frames, u64::MAX);
    println!("compaction freed {freed} bytes in {} us", start.elapsed().as_micros());
    print("compacted");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [kind, reads, writes] = &arguments[..] {
        let look = KINDS.iter().find(|(name, _)| name == kind).unwrap().1;
        let bench = Bench::new(look);
        bench.write();
        (0..reads.parse().unwrap()).for_each(|_: u32| bench.read());
        (0..writes.parse().unwrap()).for_each(|_: u32| bench.write());
        return;
    }
    for (name, look) in KINDS {
        let bench = Bench::new(look);
        bench.write();
        print(name, "write", (0..400).map(|_| time(|| bench.write())).collect());
        print(name, "read", (0..400).map(|_| time(|| bench.read())).collect());
    }
    density();
}
