//! Trees of processes with large folios, on real threads, against a model: every call at borders that fit
//! and that do not, sizes that are enabled and disabled meanwhile, formats with other tables. `QUIRE_SEEDS`
//! and `QUIRE_ROUNDS` make the runs longer.

use crate::common::*;
use quire_arch::paging::invented::Invented3;
use quire_arch::paging::{X86_64Level4, X86_64Level5};
use std::sync::Arc;
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

fn addr(at: u64) -> VirtAddr {
    page(VirtAddr(AREA), at)
}

/// Other sizes for every program, PMD leaves most of the time.
fn change_sizes<F: PagingFormat>(machine: &Machine<F>, random: &mut Random) {
    let leaf = leaf_pages::<F>().ilog2() as u8;
    let leaves = if random.chance(70) { OrderSet::of(Order::new(leaf).unwrap()) } else { OrderSet::EMPTY };
    let orders =
        OrderSet::from_bits(random.next() as u16 & 0x3fc).difference(OrderSet::of(Order::new(leaf).unwrap()));
    machine.memory().huge().change(|policy| {
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
    let (at, pages) = any_range::<F>(random);
    let range = at..at + pages;
    let (start, len) = (addr(at), pages * PAGE);
    match random.below(100) {
        0..40 => process.write(cpu, at, value).unwrap(),
        40..55 => process.check(cpu, at).unwrap(),
        55..62 => process.call(Call::Advise(Advice::DontNeed), range).unwrap(),
        62..69 => {
            process.call(Call::Unmap, range.clone()).unwrap();
            process.call(Call::Map(RW), range).unwrap();
        }
        69..76 => {
            let protection = random.pick(&[READ, Protection::empty(), RW | Protection::EXECUTE]);
            process.call(Call::Protect(protection), range.clone()).unwrap();
            if random.chance(30) {
                // PROT_NONE memory is shared as well.
                let mut child = process.fork().unwrap();
                for process in [&mut *process, &mut child] {
                    process.call(Call::Protect(RW), range.clone()).unwrap();
                }
                process.write(cpu, at, value).unwrap();
                child.check(cpu, at).unwrap();
            } else {
                process.call(Call::Protect(RW), range).unwrap();
            }
        }
        76..84 => {
            // Away and back, to places that are aligned alike or not.
            let shift = if random.chance(50) { at } else { random.below(700) };
            let away = (OTHER - AREA) / PAGE + shift;
            process.call(Call::move_to(away, pages), range).unwrap();
            process.call(Call::move_to(at, pages), away..away + pages).unwrap();
        }
        84..88 => {
            process.space.mlock(start, len, false).unwrap();
            process.space.munlock(start, len).unwrap();
        }
        88..92 => {
            let advice = random.pick(&[Advice::HugePage, Advice::NoHugePage, Advice::PopulateWrite]);
            process.call(Call::Advise(advice), range).unwrap();
        }
        92..95 => {
            // What a device sees is what the program sees, also after a fork.
            let access = random.pick(&[Access::Read, Access::Write]);
            let pinned = process.space.pin_page(start, access).unwrap();
            let child = process.fork().unwrap();
            process.write(cpu, at, value).unwrap();
            if pinned.pfn() != machine.memory().spaces().zero_page() {
                assert_device_sees(machine, pinned.pfn(), value);
            }
            child.check(cpu, at).unwrap();
        }
        95..97 => {
            let start = process.space.brk(VirtAddr(0));
            let end = process.space.brk(VirtAddr(start.0 + len));
            if end.0 > start.0 {
                write(cpu, &process.space, start, 1);
                process.space.brk(VirtAddr(start.0 + (len / 2).next_multiple_of(PAGE)));
                process.space.brk(start);
            }
        }
        97..99 => in_the_background(machine, &process.space, random, start),
        _ => change_sizes(machine, random),
    }
}

/// A device reads from a pinned page what the program wrote.
#[track_caller]
fn assert_device_sees<F: PagingFormat>(machine: &Machine<F>, pinned: Pfn, value: u64) {
    // SAFETY: the page is pinned, and only this thread writes to it.
    let seen = unsafe { machine.memory().platform().direct_map(pinned).cast::<u64>().read() };
    assert_eq!(seen, value, "the program and its device see the same page");
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
            machine.memory().spaces().thp().split_deferred(random.below(600));
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
        let space = create_space(&machine);
        let mut first = Process::with_pages(space, VirtAddr(AREA), pages_of::<F>());
        {
            let cpu = machine.vcpu(0).unwrap();
            for at in (0..pages_of::<F>()).step_by(7) {
                first.write(&cpu, at, at + 1).unwrap();
            }
        }
        let owner = |number| (vec![first.fork().unwrap()], Random(seed << 8 | number as u64));
        let mut owned: Vec<_> = (0..threads).map(owner).collect();
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
                                    0 if processes.len() < 5 => {
                                        let child = processes[which].fork().unwrap();
                                        processes.push(child);
                                    }
                                    1 if processes.len() > 1 => drop(processes.swap_remove(which)),
                                    _ => {
                                        let value = (number as u64 + 1) << 32 | round << 16 | nth;
                                        step(machine, &cpu, random, &mut processes[which], value);
                                    }
                                }
                            }
                            processes.iter().for_each(|process| process.check_all(&cpu));
                        });
                    });
                }
            });
            assert_audit(&machine);
        }
        drop(owned);
        first.check_all(&machine.vcpu(0).unwrap());
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
    change_sizes(&machine, &mut Random(seed));
    let space = Arc::new(create_space(&machine));
    map_at(&space, AREA, pages_of::<F>() * PAGE, RW);
    let mut threads = [0, 1].map(|number| {
        let own = (number..pages_of::<F>() - 1).step_by(2);
        (number, Process::new(Arc::clone(&space), VirtAddr(AREA), own), Random(seed << 8 | number))
    });
    for round in 0..setting("QUIRE_ROUNDS", 10) {
        thread::scope(|scope| {
            for (number, process, random) in &mut threads {
                let machine = &machine;
                scope.spawn(move || own_pages(machine, process, (*number, round), random));
            }
        });
        // Also what each CPU caches of the other's pages.
        assert_audit(&machine);
    }
}

/// What thread `number` does in one round to every second page.
fn own_pages<F: PagingFormat>(
    machine: &Machine<F>,
    process: &mut Process<'_, F>,
    (number, round): (u64, u64),
    random: &mut Random,
) {
    let cpu = machine.vcpu(number as usize).unwrap();
    for nth in 1..=50 {
        let at = random.below(pages_of::<F>() / 2 - 1) * 2 + number;
        let new = (round << 16 | nth) << 1 | number;
        cpu.run(|| match random.below(100) {
            0..45 => process.write(&cpu, at, new).unwrap(),
            45..60 => process.check(&cpu, at).unwrap(),
            60..70 => {
                let seen = read(&cpu, &process.space, addr(at ^ 1));
                assert!(seen == 0 || seen & 1 != number, "{seen} in a page of the other");
            }
            70..80 => process.call(Call::Advise(Advice::DontNeed), at..at + 1).unwrap(),
            80..83 => in_the_background(machine, &process.space, random, addr(at)),
            83..86 => {
                let (start, len) = any_range::<F>(random);
                let protection = random.pick(&[RW, RW | Protection::EXECUTE]);
                process.call(Call::Protect(protection), start..start + len).unwrap();
            }
            86..90 => {
                let pinned = process.space.pin_page(addr(at), Access::Write).unwrap();
                process.write(&cpu, at, new).unwrap();
                assert_device_sees(machine, pinned.pfn(), new);
            }
            90..97 => {
                let mut child = process.fork().unwrap();
                for at in (number..pages_of::<F>() - 1).step_by(14) {
                    child.check(&cpu, at).unwrap();
                }
                child.write(&cpu, at, 0).unwrap();
                process.write(&cpu, at, new).unwrap();
            }
            _ => change_sizes(machine, random),
        });
    }
    process.check_all(&cpu);
}

#[test]
fn threads_that_split_each_others_pmds_keep_their_pages() {
    for seed in 1..=setting("QUIRE_SEEDS", 4) {
        threads_of_one_process::<X86_64Level4>(seed);
        threads_of_one_process::<Invented3>(seed);
    }
}
