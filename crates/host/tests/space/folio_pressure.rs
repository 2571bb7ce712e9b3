//! Large folios that are partly unmapped while memory is short: the unmapped parts must be freed before a
//! fault fails.
//!
//! The programs keep less mapped than half of RAM. So whatever is missing when a fault finds no memory is in
//! folios on the deferred split queue, and no fault may fail.

use crate::common::*;
use std::sync::Arc;
use std::thread;

const RAM: u64 = 32 << 20;
/// Bytes that all programs together keep mapped, about: each may exceed it by one folio.
const MOST_MAPPED: u64 = RAM / 2 - 2 * MIB2;
/// Blocks of 2 MiB that one program uses.
const BLOCKS: u64 = 64;
const PAGES: u64 = MIB2 / PAGE;

/// A machine where private pages come in folios of these orders wherever they fit.
fn machine_of(sizes: &[u8], cpus: usize) -> Machine {
    Setup::of(HostConfig::with_ram(RAM).cpus(cpus).paranoid()).overcommit().folios(orders(sizes)).build()
}

/// A program in its area.
struct Tenant<'v, 'm> {
    cpu: &'v Vcpu,
    process: Process<'m>,
    /// Bytes that its space may have mapped.
    most: u64,
    /// Pages of the smallest folio.
    folio: u64,
    random: Random,
}

impl<'v, 'm> Tenant<'v, 'm> {
    fn new(cpu: &'v Vcpu, space: &Arc<HostSpace<'m>>, area: u64, most: u64, folio: u64, seed: u64) -> Self {
        let process = Process::with_pages(Arc::clone(space), VirtAddr(area), BLOCKS * PAGES);
        Self { cpu, process, most, folio, random: Random(seed) }
    }

    fn write(&mut self, at: u64) {
        let result = self.process.write(self.cpu, at, self.random.next());
        let resident = self.process.space.figures().resident >> 10;
        assert_eq!(result, Ok(()), "page {at}, with {resident} kB mapped");
    }

    fn check(&self, at: u64) {
        assert_eq!(self.process.check(self.cpu, at), Ok(()), "page {at}");
    }

    fn call(&mut self, call: Call, first: u64, pages: u64) {
        let result = self.process.call(call, first..first + pages);
        assert_eq!(result, Ok(()), "{call:?} of {pages} pages from {first} on");
    }

    fn drop_contents(&mut self, first: u64, pages: u64) {
        self.call(Call::Advise(Advice::DontNeed), first, pages);
    }

    fn map_anew(&mut self, first: u64, pages: u64) {
        self.call(Call::Unmap, first, pages);
        self.call(Call::Map(RW), first, pages);
    }

    /// Drops all pages but the first of each folio, or everything, from each block.
    fn shrink(&mut self) {
        for block in (0..BLOCKS).map(|block| block * PAGES) {
            if self.random.chance(30) {
                self.drop_contents(block, PAGES);
                continue;
            }
            for folio in (0..PAGES).step_by(self.folio as usize) {
                self.drop_contents(block + folio + 1, self.folio - 1);
            }
        }
    }

    fn step(&mut self) {
        if self.process.space.figures().resident > self.most {
            self.shrink();
        }
        let block = self.random.below(BLOCKS) * PAGES;
        let first = self.random.below(PAGES);
        let pages = self.random.below(PAGES - first) + 1;
        // The first page of a folio is left: that keeps the folio.
        let folio = block + first - first % self.folio;
        let start = self.random.below(self.folio - 1) + 1;
        let part = self.random.below(self.folio - start) + 1;
        match self.random.below(100) {
            0..40 => self.write(block + first),
            40..60 => (0..pages).for_each(|nth| self.write(block + first + nth)),
            60..65 => self.call(Call::Advise(Advice::PopulateWrite), block + first, pages),
            65..80 => self.check(block + first),
            80..88 => self.drop_contents(folio + start, part),
            88..96 => self.map_anew(folio + start, part),
            96 => self.drop_contents(block + first, pages),
            97 => self.drop_contents(block, PAGES),
            // A block without a table may get a large folio again.
            _ => self.map_anew(block, PAGES),
        }
    }

    fn check_all(&self) {
        let written = self.process.pages.iter().filter(|(_, page)| page.word != 0);
        written.for_each(|(&at, _)| self.check(at));
        (0..BLOCKS * PAGES).step_by(7).for_each(|at| self.check(at));
    }
}

/// How many folios were split: none if memory was never short.
fn splits(machine: &Machine, orders: &[u8]) -> u64 {
    let events = machine.memory().frames().events();
    let split = |order: &u8| events.folios(Order::new(*order).unwrap(), FolioCounter::Split);
    orders.iter().map(split).sum()
}

/// The smallest first.
const ORDERS: [&[u8]; 3] = [&[9], &[4], &[4, 9]];

#[test]
fn no_fault_fails_while_unmapped_parts_of_folios_would_do() {
    for seed in 1..=setting("QUIRE_SEEDS", 3) {
        for orders in ORDERS {
            println!("seed {seed}, orders {orders:?}");
            let machine = machine_of(orders, 1);
            let cpu = machine.vcpu(0).unwrap();
            let space = Arc::new(create_space(&machine));
            let unused = used_frames(&machine);
            let mut tenant = Tenant::new(&cpu, &space, GIB, MOST_MAPPED, 1 << orders[0], seed);
            for step in 0..setting("QUIRE_STEPS", 1000) {
                tenant.step();
                if step % 250 == 0 {
                    assert_audit(&machine);
                }
            }
            tenant.check_all();
            assert!(splits(&machine, orders) > 0, "memory was not short");
            // Only what is mapped is left when the deferred split queue is empty.
            split_deferred(&machine);
            assert_eq!(waiting_to_split(&machine), 0);
            let figures = space.figures();
            let mapped = (figures.resident + figures.page_tables) / PAGE;
            let kept = used_frames(&machine) - unused - mapped;
            // Reads may have mapped the huge zero page, of which there is one.
            let kept = if kept >= PAGES { kept - PAGES } else { kept };
            assert!(kept < 16, "{kept} frames are held without a mapping");
            assert_audit(&machine);
            tenant.check_all();
        }
    }
}

/// Each in a space of its own, or both in one. How much both have at one time is up to the scheduler, so that
/// memory need not be short on each machine.
#[test]
fn no_fault_of_two_threads_fails_while_unmapped_parts_of_folios_would_do() {
    let mut split = 0;
    for seed in 1..=setting("QUIRE_SEEDS", 3) {
        for orders in ORDERS {
            for spaces in [1, 2] {
                println!("seed {seed}, orders {orders:?}, {spaces} spaces");
                let machine = machine_of(orders, 2);
                let space = |_| Arc::new(create_space(&machine));
                let spaces: Vec<_> = (0..spaces).map(space).collect();
                thread::scope(|scope| {
                    for thread in 0..2 {
                        let (machine, space) = (&machine, &spaces[thread % spaces.len()]);
                        let most = MOST_MAPPED / spaces.len() as u64;
                        scope.spawn(move || {
                            let cpu = machine.vcpu(thread).unwrap();
                            let area = GIB * (thread as u64 + 1);
                            let seed = 2 * seed + thread as u64;
                            let mut tenant = Tenant::new(&cpu, space, area, most, 1 << orders[0], seed);
                            for _ in 0..setting("QUIRE_STEPS", 1000) {
                                tenant.step();
                            }
                            tenant.check_all();
                        });
                    }
                });
                split += splits(&machine, orders);
                assert_audit(&machine);
            }
        }
    }
    assert!(split > 0, "memory was never short");
}
