//! The file-creation burst: only allocations, none of which the lists can serve from earlier frees.
//!
//! Each file takes an inode, a directory entry and page-cache folios, as a file system with large folios
//! does. A burst is freed between rounds, untimed, down to empty lists.

use super::comparison::{TIMES, compare, figures, timed_on_cpus};
use super::traffic::choose;
use super::{OBJECT_RAM, SEED};
use crate::machine::{Machine, MachineSpec};
use crate::objects::{Object, Objects};
use crate::prelude::*;
use crate::quire::LAB;
use fastrand::Rng;
use quire_arch::Pfn;
use quire_frame::{AllocRequest, Migratetype};

const THREADS: usize = 2;
const ROUNDS: [usize; 3] = [8, 3, 1];
const INODE: usize = 1024;
const DENTRY: usize = 192;
/// Out of a hundred files, how many are cached in a folio of which order.
const FOLIOS: [(u32, Order); 4] =
    [(55, Order::ALL[0]), (25, Order::ALL[2]), (15, Order::ALL[3]), (5, Order::ALL[4])];
/// How much of RAM the page cache of a burst takes.
const PART_OF_RAM: f64 = 0.6;

/// What a thread allocated.
#[derive(Default)]
struct Taken {
    objects: Vec<Object>,
    folios: Vec<(Pfn, Order)>,
}

/// Makes a file, pinned.
fn create(objects: &Objects<'_>, order: Order, taken: &mut Taken) -> Done {
    let frames = objects.machine().frames();
    let pin = &frames.platform().pin();
    taken.objects.push(objects.allocate(pin, INODE)?);
    taken.objects.push(objects.allocate(pin, DENTRY)?);
    let request = AllocRequest::new(order, LAB).movability(Migratetype::Movable);
    taken.folios.push((frames.allocate(pin, request)?, order));
    Ok(())
}

/// Frees everything.
fn clear(objects: &Objects<'_>, pin: &Pin<'_, HostPlatform>, taken: Taken) -> Done {
    for object in taken.objects {
        // SAFETY: allocated from these objects in `create`.
        unsafe { objects.free(pin, object) };
    }
    taken.folios.into_iter().try_for_each(|(pfn, order)| {
        let freed = objects.machine().frames().free(pin, pfn, order);
        freed.map_err(|error| LabError::Kept(pfn, error))
    })
}

fn burst(machine: &Machine, ram: u64) -> Done<Rounds<'_>> {
    let objects = Objects::new(machine)?;
    let mut random = Rng::with_seed(SEED);
    let share = (ram as f64 / PAGE_SIZE as f64 * PART_OF_RAM) as u64 / THREADS as u64;
    // The folio of each file that a thread makes.
    let (mut pages, mut files) = (0, Vec::new());
    while pages < share {
        let order = choose(&mut random, &FOLIOS);
        pages += order.pages();
        files.push(order);
    }
    Ok(Box::new(move |_| {
        let count = files.len();
        let (threads, counts) = timed_on_cpus(machine, THREADS, |_| {
            let mut taken =
                Taken { objects: Vec::with_capacity(2 * count), folios: Vec::with_capacity(count) };
            let made = files.iter().try_for_each(|&order| create(&objects, order, &mut taken));
            (taken, made)
        });
        let (mut worked, mut sum) = (Ok(()), 0.0);
        for ((taken, made), time) in threads {
            let cleared = machine.pinned_on(0, |pin| clear(&objects, pin, taken));
            worked = worked.and(made).and(cleared);
            sum += time;
        }
        objects.shrink();
        machine.free_when_drained();
        worked?;
        let operations = 3 * count * THREADS;
        Ok(figures(&[sum / operations as f64], counts, operations))
    }))
}

pub(super) fn part(lab: &mut Lab<'_>) -> Done {
    let (ram, rounds) = (lab.scale.of(OBJECT_RAM), lab.scale.of(ROUNDS));
    lab.part("Burst of allocations, 2 threads: ns for each allocation; lock takes for 1000");
    let spec = MachineSpec { backed: true, ..MachineSpec::new(ram, THREADS) };
    let rows = [(String::new(), &TIMES[0][..])];
    compare(lab, "file-creation burst", (spec, rounds), |machine| burst(machine, ram), &rows)
}
