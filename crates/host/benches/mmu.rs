//! What the machine itself costs: pins, TLB hits, walks, flushes, shootdowns. Minimum and median of
//! nanoseconds per operation.
#![allow(clippy::unwrap_used, reason = "a failure is the end of a benchmark")]

#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/toy/mod.rs"]
mod toy;

use quire_arch::paging::X86_64Level4;
use quire_arch::{Access, CpuMask, PAGE_SIZE, Platform, TlbFlush, VirtAddr, VirtRange};
use quire_host::HostConfig;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use toy::{Space, Toy, window};

const BASE: u64 = 0x4000_0000;
/// Far more pages than the TLB holds.
const PAGES: u64 = 2048;
const SAMPLES: usize = 300;

/// Prints the cost of one of the `operations` that a call of `batch` makes.
fn measure(name: &str, operations: u64, mut batch: impl FnMut()) {
    let mut samples: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let start = Instant::now();
            batch();
            start.elapsed().as_nanos() as f64 / operations as f64
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    println!("{name:<52} {:>9.2} {:>9.2}", samples[0], samples[SAMPLES / 2]);
}

fn addr(page: u64) -> VirtAddr {
    VirtAddr(BASE + page * PAGE_SIZE)
}

fn main() {
    println!("{:<52} {:>9} {:>9}", "ns per operation", "min", "median");
    for paranoid in [false, true] {
        accesses(paranoid);
    }
    let toy = Toy::<X86_64Level4>::new(
        &HostConfig { large_pages: true, prefault: true, ..HostConfig::with_ram(16 << 20) }.cpus(2),
    );
    let space = Space::new(&toy, 1, window(BASE, PAGES));
    let platform = &toy.platform;
    let (own, target) = (platform.vcpu(0).unwrap(), platform.vcpu(1).unwrap());
    measure("pin and unpin, on a borrowed vCPU", 1000, || {
        (0..1000).for_each(|_| drop(black_box(platform.pin())));
    });
    let range = VirtRange::from_len(VirtAddr(BASE), PAGE_SIZE).unwrap();
    let one_page = TlbFlush::Range { asid: space.asid, range };
    let all = CpuMask::first(2);
    let shoot = |flush| {
        own.run(|| {
            let pin = platform.pin();
            (0..100).for_each(|_| platform.shootdown(&pin, &all, flush));
        });
    };
    own.run(|| {
        measure("pin and unpin, on a vCPU", 1000, || {
            (0..1000).for_each(|_| drop(black_box(platform.pin())));
        });
        let pin = platform.pin();
        measure("flush_local, one page", 1000, || {
            (0..1000).for_each(|_| platform.flush_local(&pin, one_page));
        });
        let long = TlbFlush::Range { asid: space.asid, range: space.window };
        measure("flush_local, a long range", 100, || (0..100).for_each(|_| platform.flush_local(&pin, long)));
    });
    measure("shootdown of two vCPUs, one page, other outside", 100, || shoot(one_page));
    let stop = AtomicBool::new(false);
    let ready = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            target.program(&space).inside(|guest| {
                while !stop.load(Ordering::Relaxed) {
                    guest.read_u64(VirtAddr(BASE)).unwrap();
                    ready.store(true, Ordering::Relaxed);
                }
            });
            drop(target);
        });
        while !ready.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        measure("shootdown of two vCPUs, one page, other inside", 100, || shoot(one_page));
        stop.store(true, Ordering::Relaxed);
    });
}

/// Accesses of one vCPU.
fn accesses(paranoid: bool) {
    let config = HostConfig { prefault: true, paranoid, ..HostConfig::with_ram(16 << 20) };
    let toy = Toy::<X86_64Level4>::new(&config);
    let space = Space::new(&toy, 1, window(BASE, PAGES));
    let vcpu = toy.platform.vcpu(0).unwrap();
    let program = vcpu.program(&space);
    (0..PAGES).for_each(|page| program.touch(addr(page), Access::Write).unwrap());
    let mode = if paranoid { ", paranoid" } else { "" };
    measure(&format!("TLB hit, read_u64, entering each time{mode}"), 1000, || {
        for page in 0..1000 {
            black_box(program.read_u64(addr(page % 64)).unwrap());
        }
    });
    program.inside(|guest| {
        measure(&format!("TLB hit, read_u64, inside{mode}"), 1000, || {
            for page in 0..1000 {
                black_box(guest.read_u64(addr(page % 64)).unwrap());
            }
        });
        measure(&format!("TLB hit, write_u64, inside{mode}"), 1000, || {
            for page in 0..1000 {
                guest.write_u64(addr(page % 64), page).unwrap();
            }
        });
        measure(&format!("TLB hit, touch, inside{mode}"), 1000, || {
            for page in 0..1000 {
                guest.touch(addr(page % 64), Access::Read).unwrap();
            }
        });
        measure(&format!("TLB hit, read of a page, inside{mode}"), 64, || {
            let mut buffer = [0; PAGE_SIZE as usize];
            for page in 0..64 {
                guest.read(addr(page), &mut buffer).unwrap();
            }
        });
        measure(&format!("TLB miss, 4 levels, touch, inside{mode}"), PAGES, || {
            for page in 0..PAGES {
                guest.touch(addr(page), Access::Read).unwrap();
            }
        });
    });
}
