//! Trees of processes with large folios, on real threads, against a model: every call at borders that fit
//! and that do not, sizes that are enabled and disabled meanwhile, formats with other tables. `QUIRE_SEEDS`
//! and `QUIRE_ROUNDS` make the runs longer.

use crate::common::{HostSpace, PAGE, READ, RW, Random, Setup, assert_audit, in_use, map_at, page, setting};
use quire_arch::paging::invented::Invented3;
use quire_arch::paging::{X86_64Level4, X86_64Level5};
use quire_arch::{Access, Level, Order, PagingFormat, Platform, VirtAddr};
use quire_host::{Machine, Vcpu};
use quire_mm::{Advice, HugeEnabled, OrderSet, Protection, RemapFlags, SizeEnabled};
use std::collections::BTreeMap;
use std::thread;

/// Addresses of two areas between which pages move, aligned to leaves of every format.
const AREA: u64 = 1 << 30;
const OTHER: u64 = 3 << 30;
/// Each process's area, in leaves of a PMD table.
const LEAVES: u64 = 3;

fn pages_of<F: PagingFormat>() -> u64 {
    LEAVES * leaf_pages::<F>() + 5
}

fn leaf_pages<F: PagingFormat>() -> u64 {
    F::entry_bytes(Level::PMD) / PAGE
}

struct Process<'m, F: PagingFormat> {
    space: HostSpace<'m, F>,
    /// What it wrote or inherited. All else is zero.
    pages: BTreeMap<u64, u64>,
}

impl<F: PagingFormat> Process<'_, F> {
    fn child(&self) -> Self {
        Self { space: self.space.fork().unwrap(), pages: self.pages.clone() }
    }

    fn expected(&self, at: u64) -> u64 {
        self.pages.get(&at).copied().unwrap_or(0)
    }

    fn check(&self, cpu: &Vcpu<F>) {
        let program = cpu.program(&self.space);
        for at in 0..pages_of::<F>() {
            assert_eq!(program.read_u64(addr(at)), Ok(self.expected(at)), "page {at}");
        }
    }

    fn forget(&mut self, (at, len): (u64, u64)) {
        self.pages.retain(|&page, _| !(at..at + len).contains(&page));
    }
}

fn addr(at: u64) -> VirtAddr {
    page(VirtAddr(AREA), at)
}

/// Other sizes for every program, PMD leaves most of the time.
fn change_sizes<F: PagingFormat>(machine: &Machine<F>, random: &mut Random) {
    let leaf = leaf_pages::<F>().ilog2() as u8;
    let leaves = if random.chance(70) { OrderSet::of(Order::new(leaf).unwrap()) } else { OrderSet::EMPTY };
    let orders =
        OrderSet::from_bits(random.next() as u16 & 0x3fc).difference(OrderSet::of(Order::new(leaf).unwrap()));
    machine.memory().spaces().huge().change(|policy| {
        let all = OrderSet::from_bits(0x3fc);
        policy
            .with_enabled(HugeEnabled::Never)
            .with_sizes(all, SizeEnabled::Never)
            .with_sizes(orders.union(leaves), SizeEnabled::Always)
    });
}

/// A range that often begins or ends with a leaf.
fn any_range<F: PagingFormat>(random: &mut Random) -> (u64, u64) {
    let (leaf, end) = (leaf_pages::<F>(), pages_of::<F>());
    let border = |random: &mut Random| match random.below(3) {
        0 => random.below(LEAVES + 1) * leaf,
        1 => (random.below(LEAVES + 1) * leaf + random.below(5)).saturating_sub(2),
        _ => random.below(end),
    };
    let (a, b) = (border(random).min(end - 1), border(random).min(end - 1));
    (a.min(b), a.abs_diff(b) + 1)
}

fn step<F: PagingFormat>(
    machine: &Machine<F>,
    cpu: &Vcpu<F>,
    random: &mut Random,
    process: &mut Process<'_, F>,
    value: u64,
) {
    let space = &process.space;
    let range = any_range::<F>(random);
    let (start, len) = (addr(range.0), range.1 * PAGE);
    match random.below(100) {
        0..40 => {
            let at = range.0;
            cpu.program(space).write_u64(start, value).unwrap();
            process.pages.insert(at, value);
        }
        40..55 => {
            let at = range.0;
            assert_eq!(cpu.program(space).read_u64(start), Ok(process.expected(at)), "page {at}");
        }
        55..62 => {
            space.madvise(start, len, Advice::DontNeed).unwrap();
            process.forget(range);
        }
        62..69 => {
            space.munmap(start, len).unwrap();
            map_at(space, start.0, len, RW);
            process.forget(range);
        }
        69..76 => {
            let protection = random.pick(&[READ, Protection::empty(), RW | Protection::EXECUTE]);
            space.mprotect(start, len, protection, false).unwrap();
            if random.chance(30) {
                // PROT_NONE memory is shared as well.
                let child = process.child();
                for space in [&process.space, &child.space] {
                    space.mprotect(start, len, RW, false).unwrap();
                }
                let program = cpu.program(&process.space);
                program.write_u64(start, value).unwrap();
                let inherited = process.pages.insert(range.0, value).unwrap_or(0);
                assert_eq!(cpu.program(&child.space).read_u64(start), Ok(inherited), "page {}", range.0);
            } else {
                space.mprotect(start, len, RW, false).unwrap();
            }
        }
        76..84 => {
            // Away and back, to places that are aligned alike or not.
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            let away = page(VirtAddr(OTHER), if random.chance(50) { range.0 } else { random.below(700) });
            space.mremap(start, len, len, flags, away).unwrap();
            space.mremap(away, len, len, flags, start).unwrap();
        }
        84..88 => {
            space.mlock(start, len, false).unwrap();
            space.munlock(start, len).unwrap();
        }
        88..92 => {
            let advice = random.pick(&[Advice::HugePage, Advice::NoHugePage, Advice::PopulateWrite]);
            space.madvise(start, len, advice).unwrap();
        }
        92..95 => {
            // What a device sees is what the program sees, also after a fork.
            let pinned = space.pin_page(start, random.pick(&[Access::Read, Access::Write])).unwrap();
            let child = process.child();
            cpu.program(&process.space).write_u64(start, value).unwrap();
            let wrote = process.expected(range.0);
            process.pages.insert(range.0, value);
            let zero = machine.memory().spaces().zero_page();
            if pinned.pfn() != zero {
                // SAFETY: the page is pinned, and only this thread writes to it.
                let seen =
                    unsafe { machine.memory().platform().direct_map(pinned.pfn()).cast::<u64>().read() };
                assert_eq!(seen, value, "the program and its device see the same page");
            }
            assert_eq!(cpu.program(&child.space).read_u64(start), Ok(wrote));
            drop(child);
            drop(pinned);
        }
        95..97 => {
            let start = process.space.brk(VirtAddr(0));
            let end = process.space.brk(VirtAddr(start.0 + len));
            if end.0 > start.0 {
                cpu.program(&process.space).write_u64(start, 1).unwrap();
                process.space.brk(VirtAddr(start.0 + (len / 2).next_multiple_of(PAGE)));
                process.space.brk(start);
            }
        }
        97..99 => in_the_background(machine, &process.space, random, start),
        _ => change_sizes(machine, random),
    }
}

/// What a machine does beside its programs, without effect on them: folios are split and collapsed.
fn in_the_background<F: PagingFormat>(
    machine: &Machine<F>,
    space: &HostSpace<'_, F>,
    random: &mut Random,
    at: VirtAddr,
) {
    // Each may have nothing to do, or fail since the folio is in use.
    match random.below(4) {
        0 => {
            let to = Order::new(random.below(5) as u8).unwrap();
            let _ = space.split_folio(at, to);
        }
        1 => {
            machine.memory().spaces().split_deferred(random.below(600));
        }
        2 => {
            machine.memory().khugepaged_step();
        }
        _ => {
            let block = leaf_pages::<F>() * PAGE;
            let _ = space.madvise(VirtAddr(at.0 & !(block - 1)), block, Advice::Collapse);
        }
    }
}

/// A tree of processes, of which each thread owns some: they share folios, tables are made and freed under
/// all of them.
fn random_families<F: PagingFormat>(seed: u64, threads: usize) {
    println!("seed {seed}, {threads} threads");
    let machine: Machine<F> = Setup::mib(192).cpus(threads).build();
    let before = in_use(&machine);
    let steps = setting("QUIRE_ROUNDS", 250);
    {
        let random = &mut Random(seed);
        change_sizes(&machine, random);
        let space = machine.memory().create_space().unwrap();
        map_at(&space, AREA, pages_of::<F>() * PAGE, RW);
        let mut first = Process { space, pages: BTreeMap::new() };
        {
            let cpu = machine.vcpu(0).unwrap();
            for at in (0..pages_of::<F>()).step_by(7) {
                cpu.program(&first.space).write_u64(addr(at), at + 1).unwrap();
                first.pages.insert(at, at + 1);
            }
        }
        let mut owned: Vec<_> =
            (0..threads).map(|number| (vec![first.child()], Random(seed << 8 | number as u64))).collect();
        for round in 0..3 {
            thread::scope(|scope| {
                for (number, (processes, random)) in owned.iter_mut().enumerate() {
                    let machine = &machine;
                    scope.spawn(move || {
                        let cpu = machine.vcpu(number).unwrap();
                        cpu.run(|| {
                            for nth in 0..steps {
                                let which = random.below(processes.len() as u64) as usize;
                                match random.below(20) {
                                    0 if processes.len() < 5 => processes.push(processes[which].child()),
                                    1 if processes.len() > 1 => drop(processes.swap_remove(which)),
                                    _ => {
                                        let value = (number as u64 + 1) << 32 | round << 16 | nth;
                                        step(machine, &cpu, random, &mut processes[which], value);
                                    }
                                }
                            }
                            processes.iter().for_each(|process| process.check(&cpu));
                        });
                    });
                }
            });
            assert_audit(&machine);
        }
        drop(owned);
        first.check(&machine.vcpu(0).unwrap());
        drop(first);
    }
    assert_audit(&machine);
    assert_eq!(in_use(&machine), before);
}

fn families<F: PagingFormat>(seeds: u64) {
    for seed in 1..=setting("QUIRE_SEEDS", seeds) {
        random_families::<F>(seed, 1);
        random_families::<F>(100 + seed, 2);
    }
}

#[test]
fn families_with_large_folios_on_x86_64_with_four_levels() {
    families::<X86_64Level4>(4);
}

#[test]
fn families_with_large_folios_on_x86_64_with_five_levels() {
    families::<X86_64Level5>(1);
}

#[test]
fn families_with_large_folios_on_an_invented_format() {
    families::<Invented3>(4);
}

/// Threads of one process, whose pages alternate: a call on the pages of one splits the folios of both, and
/// changes no page of the other.
fn threads_of_one_process<F: PagingFormat>(seed: u64) {
    println!("seed {seed}");
    let machine: Machine<F> = Setup::mib(192).cpus(2).build();
    let before = in_use(&machine);
    {
        change_sizes(&machine, &mut Random(seed));
        let space = machine.memory().create_space().unwrap();
        map_at(&space, AREA, pages_of::<F>() * PAGE, RW);
        let mut threads = [0, 1].map(|number| (number, BTreeMap::new(), Random(seed << 8 | number)));
        for round in 0..setting("QUIRE_ROUNDS", 10) {
            thread::scope(|scope| {
                for (number, pages, random) in &mut threads {
                    let (machine, space) = (&machine, &space);
                    scope.spawn(move || own_pages(machine, space, (*number, round), pages, random));
                }
            });
            // Also what each CPU caches of the other's pages.
            assert_audit(&machine);
        }
    }
    assert_audit(&machine);
    assert_eq!(in_use(&machine), before);
}

/// What thread `number` does in one round to every second page.
fn own_pages<F: PagingFormat>(
    machine: &Machine<F>,
    space: &HostSpace<'_, F>,
    (number, round): (u64, u64),
    pages: &mut BTreeMap<u64, u64>,
    random: &mut Random,
) {
    let cpu = machine.vcpu(number as usize).unwrap();
    let program = cpu.program(space);
    for nth in 1..=50 {
        let at = random.below(pages_of::<F>() / 2 - 1) * 2 + number;
        let new = (round << 16 | nth) << 1 | number;
        let old = pages.get(&at).copied().unwrap_or(0);
        cpu.run(|| match random.below(100) {
            0..45 => {
                program.write_u64(addr(at), new).unwrap();
                pages.insert(at, new);
            }
            45..60 => assert_eq!(program.read_u64(addr(at)), Ok(old), "page {at}"),
            60..70 => {
                let seen = program.read_u64(addr(at ^ 1)).unwrap();
                assert!(seen == 0 || seen & 1 != number, "{seen} in a page of the other");
            }
            70..80 => {
                space.madvise(addr(at), PAGE, Advice::DontNeed).unwrap();
                pages.insert(at, 0);
            }
            80..83 => in_the_background(machine, space, random, addr(at)),
            83..86 => {
                let (start, len) = any_range::<F>(random);
                let protection = random.pick(&[RW, RW | Protection::EXECUTE]);
                space.mprotect(addr(start), len * PAGE, protection, false).unwrap();
            }
            86..90 => {
                let pinned = space.pin_page(addr(at), Access::Write).unwrap();
                program.write_u64(addr(at), new).unwrap();
                // SAFETY: the page is pinned, and only this thread writes to it.
                let seen =
                    unsafe { machine.memory().platform().direct_map(pinned.pfn()).cast::<u64>().read() };
                assert_eq!(seen, new, "the program and its device see the same page");
                pages.insert(at, new);
            }
            90..97 => {
                let child = space.fork().unwrap();
                let guest = cpu.program(&child);
                for at in (number..pages_of::<F>() - 1).step_by(14) {
                    let expected = pages.get(&at).copied().unwrap_or(0);
                    assert_eq!(guest.read_u64(addr(at)), Ok(expected), "page {at} of a child");
                }
                guest.write_u64(addr(at), 0).unwrap();
                program.write_u64(addr(at), new).unwrap();
                pages.insert(at, new);
            }
            _ => change_sizes(machine, random),
        });
    }
    for (&at, &value) in &*pages {
        assert_eq!(program.read_u64(addr(at)), Ok(value), "page {at}");
    }
}

#[test]
fn threads_that_split_each_others_pmds_keep_their_pages() {
    for seed in 1..=setting("QUIRE_SEEDS", 4) {
        threads_of_one_process::<X86_64Level4>(seed);
        threads_of_one_process::<Invented3>(seed);
    }
}
