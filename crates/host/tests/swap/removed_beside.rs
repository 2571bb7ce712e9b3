//! Programs that go from memcg to memcg, which are removed behind them, while their pages, in folios of
//! several sizes, go to a compressed cache and to the device behind it, come back, and are split.

use crate::common::*;
use crate::disk::Disk;
use quire_host::swap::{Completion, SlowConfig, SlowDevice};
use std::sync::{Mutex, PoisonError};

const PAGES: u64 = 64;
const THREADS: usize = 3;

/// A thread with its program.
struct Visitor<'a> {
    machine: &'a Machine,
    cpu: &'a Vcpu,
    space: HostSpace<'a>,
    area: VirtAddr,
    values: Vec<u64>,
    random: Random,
    children: Vec<HostSpace<'a>>,
}

impl Visitor<'_> {
    /// One to sixteen pages.
    fn some(&mut self) -> std::ops::Range<u64> {
        let first = self.random.below(PAGES);
        first..(first + 1 + self.random.below(16)).min(PAGES)
    }

    fn write(&mut self) {
        for nth in self.some() {
            let value = if self.random.below(4) == 0 { 0 } else { self.random.below(u64::MAX) };
            let other = self.random.below(u64::MAX);
            let here = page(self.area, nth);
            if write_word(self.cpu, &self.space, here, value) {
                self.values[nth as usize] = value;
            }
            // What is not all the same takes room.
            (1..200 * self.random.below(2)).for_each(|word| {
                let _ = write_word(self.cpu, &self.space, VirtAddr(here.0 + 8 * word), other ^ word << 40);
            });
        }
    }

    fn check(&self, pages: std::ops::Range<u64>) {
        for nth in pages {
            match self.cpu.program(&self.space).read_u64(page(self.area, nth)) {
                Ok(value) => assert_eq!(value, self.values[nth as usize], "page {nth}"),
                Err(error) => {
                    assert!(matches!(error, AccessError::Fault(FaultError::OutOfMemory(_))), "{error:?}");
                }
            }
        }
    }

    fn advise(&mut self, advice: Advice) {
        let pages = self.some();
        let bytes = (pages.end - pages.start) * PAGE;
        if self.space.madvise(page(self.area, pages.start), bytes, advice).is_ok()
            && advice == Advice::DontNeed
        {
            pages.for_each(|nth| self.values[nth as usize] = 0);
        }
    }

    fn step(&mut self, here: MemcgId) {
        let memory = self.machine.memory();
        match self.random.below(12) {
            0..3 => self.write(),
            3..5 => self.advise(Advice::PageOut),
            5 => {
                memory.reclaim(here, 16);
            }
            6 => self.advise(Advice::DontNeed),
            7 => {
                let pages = self.some();
                self.check(pages);
            }
            8 => self.children.extend(self.space.fork()),
            9 => drop(self.children.pop()),
            10 => {
                let text = ["0", "16K", "max"][self.random.below(3) as usize];
                memory.write_memcg_file(here, "memory.zswap.max", text).unwrap();
            }
            _ => {
                let text = ["0", "1", "1"][self.random.below(3) as usize];
                memory.write_memcg_file(here, "memory.zswap.writeback", text).unwrap();
            }
        }
    }
}

fn write_word(cpu: &Vcpu, space: &HostSpace<'_>, addr: VirtAddr, value: u64) -> bool {
    cpu.program(space).write_u64(addr, value).is_ok()
}

#[test]
fn what_removed_memcgs_have_in_a_cache_and_on_its_device_stays_counted() {
    let rounds = setting("QUIRE_ROUNDS", 60);
    let machine = Setup::mib(32).cpus(THREADS).overcommit().folios(orders(&[2, 4])).build();
    let config = SlowConfig { completion: Completion::AfterReaps(2), queue: 4, ..SlowConfig::default() };
    let disk = SlowDevice::new(Disk::new(4096).0, config);
    swap_on(&machine, machine.memory().create_compressed_cache(disk, 64 * PAGE).unwrap());
    let memory = machine.memory();
    let above = memcg(&machine, "above", &[]);
    let busy = Mutex::new(Vec::new());
    on_cpus(&machine, THREADS, |number, cpu| {
        let space = create_space(&machine);
        let area = map_at(&space, GIB, PAGES * PAGE, RW);
        let (random, values) = (Random(number as u64 + 7), vec![0; PAGES as usize]);
        let mut visitor =
            Visitor { machine: &machine, cpu, space, area, values, random, children: Vec::new() };
        for round in 0..rounds {
            let name = format!("{number}.{round}");
            let outer = memory.create_memcg(above, &name).unwrap();
            let inner = memory.create_memcg(outer, "inner").unwrap();
            visitor.space.set_memcg(inner).unwrap();
            (0..12).for_each(|_| visitor.step(inner));
            let to = if visitor.random.below(4) == 0 { MemcgId::ROOT } else { above };
            visitor.space.set_memcg(to).unwrap();
            visitor.children.iter().for_each(|child| child.set_memcg(to).unwrap());
            {
                let mut busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
                busy.extend([inner, outer]);
            }
            // Each may be removed by any thread.
            let mine = {
                let mut busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
                let at = visitor.random.below(busy.len() as u64 / 2) as usize * 2;
                [busy.remove(at), busy.remove(at)]
            };
            mine.into_iter().for_each(|memcg| memory.remove_memcg(memcg).unwrap());
            if visitor.random.below(4) == 0 {
                memory.swap().reparenting().free_numbers();
            }
        }
        visitor.check(0..PAGES);
    });
    // What was being written when its last name went is in the swap cache until it is reclaimed.
    for _ in 0..4 {
        reap(&machine, 100);
        memory.reclaim(MemcgId::ROOT, 1000);
    }
    assert_audit(&machine);
    memory.swap().reparenting().free_numbers();
    // One that was looked at before one below it was over.
    (0..2).for_each(|_| memory.memcgs().lifecycle().sweep());
    let mut left = Vec::new();
    memory.memcgs().tree().for_each_in_subtree(MemcgId::ROOT, |id| left.push(id));
    assert_eq!(left, [MemcgId::ROOT, above], "a number is lost");
    assert_eq!((usage(&machine, above), swap_usage(&machine, above)), (0, 0));
    let stats = memory.memcgs().counters().stats(MemcgId::ROOT);
    let left = [MemcgStat::Zswap, MemcgStat::Zswapped, MemcgStat::File].map(|stat| stats[stat as usize]);
    assert_eq!(left, [0; 3]);
    assert_eq!(folios(&machine, 4, FolioCounter::NrAnonPartiallyMapped), 0);
}
