//! The file-creation burst: only allocations, none of which the lists can serve from earlier frees.
//!
//! Each file takes an inode, a directory entry and page-cache folios, as a file system with large folios
//! does. A burst is freed between rounds, untimed, down to empty lists.

use super::comparison::{Comparison, Round, Workload, timed_on_cpus};
use super::{OBJECT_RAM, SEED};
use crate::error::LabError;
use crate::experiment::Lab;
use crate::machine::{Machine, MachineSpec};
use crate::objects::{Object, Objects};
use crate::quire::LAB;
use fastrand::Rng;
use quire_arch::{Order, PAGE_SIZE, Pfn, Pin, Platform};
use quire_frame::{AllocRequest, Migratetype};
use quire_host::HostPlatform;

const THREADS: usize = 2;
const ROUNDS: [usize; 3] = [8, 3, 1];
const INODE: usize = 1024;
const DENTRY: usize = 192;
/// Out of a hundred files, how many are cached in a folio of which order.
const FOLIOS: [(u32, Order); 4] =
    [(55, Order::ALL[0]), (25, Order::ALL[2]), (15, Order::ALL[3]), (5, Order::ALL[4])];
/// How much of RAM the page cache of a burst takes.
const PART_OF_RAM: f64 = 0.6;

struct Burst {
    objects: Objects,
    /// The folio of each file that a thread makes.
    files: Vec<Order>,
}

/// What a thread allocated.
#[derive(Default)]
struct Taken {
    objects: Vec<Object>,
    folios: Vec<(Pfn, Order)>,
}

impl Burst {
    fn new(machine: &Machine, ram: u64) -> Result<Self, LabError> {
        let mut random = Rng::with_seed(SEED);
        let share = (ram as f64 / PAGE_SIZE as f64 * PART_OF_RAM) as u64 / THREADS as u64;
        let mut pages = 0;
        let mut files = Vec::new();
        while pages < share {
            let order = folio(random.u32(0..100));
            pages += order.pages();
            files.push(order);
        }
        Ok(Self { objects: Objects::new(machine)?, files })
    }

    fn create(
        &self,
        machine: &Machine,
        pin: &Pin<'_, HostPlatform>,
        order: Order,
        taken: &mut Taken,
    ) -> Result<(), LabError> {
        let frames = machine.frames();
        taken.objects.push(self.objects.allocate(frames, pin, INODE)?);
        taken.objects.push(self.objects.allocate(frames, pin, DENTRY)?);
        let request = AllocRequest::new(order, LAB).movability(Migratetype::Movable);
        taken.folios.push((frames.allocate(pin, request)?, order));
        Ok(())
    }

    /// Frees everything.
    fn clear(&self, machine: &Machine, all: Vec<Taken>) -> Result<(), LabError> {
        machine.pinned_on(0, |pin| {
            for taken in all {
                for object in taken.objects {
                    // SAFETY: allocated from these objects in `create`.
                    unsafe { self.objects.free(machine.frames(), pin, object) };
                }
                for (pfn, order) in taken.folios {
                    machine.frames().free(pin, pfn, order).map_err(|error| LabError::Kept(pfn, error))?;
                }
            }
            Ok(())
        })
    }
}

/// The order that a number below 100 stands for.
fn folio(mut number: u32) -> Order {
    for (share, order) in FOLIOS {
        if number < share {
            return order;
        }
        number -= share;
    }
    Order::ZERO
}

impl Workload for Burst {
    fn round(&mut self, machine: &Machine, _number: usize) -> Result<Round, LabError> {
        let count = self.files.len();
        let (threads, counts) = timed_on_cpus(machine, THREADS, |_| {
            let mut taken =
                Taken { objects: Vec::with_capacity(2 * count), folios: Vec::with_capacity(count) };
            let pin = || machine.frames().platform().pin();
            let made =
                self.files.iter().try_for_each(|&order| self.create(machine, &pin(), order, &mut taken));
            (taken, made)
        });
        let (mut all, mut worked, mut sum) = (Vec::new(), Ok(()), 0.0);
        for ((taken, made), time) in threads {
            all.push(taken);
            worked = worked.and(made);
            sum += time;
        }
        self.clear(machine, all)?;
        self.objects.shrink(machine);
        machine.free_when_drained();
        worked?;
        let operations = (3 * count * THREADS) as u64;
        Ok(Round { figures: vec![sum / operations as f64], counts, operations })
    }

    fn end(&mut self, machine: &Machine) {
        self.objects.shrink(machine);
    }
}

pub(super) fn part(lab: &mut Lab<'_>) -> Result<(), LabError> {
    lab.part("Burst of allocations, 2 threads: ns for each allocation; lock takes for 1000");
    lab.case("file-creation burst", |case, name| {
        let (ram, rounds) = (case.scale.of(OBJECT_RAM), case.scale.of(ROUNDS));
        let spec = MachineSpec { backed: true, ..MachineSpec::new(ram, THREADS) };
        let comparison = Comparison::run(case, spec, rounds, |machine| Burst::new(machine, ram))?;
        comparison.add_times(case, name, 0);
        comparison.add_costs(case, name);
        Ok(())
    })
}
