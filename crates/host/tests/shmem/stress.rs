//! Three threads do random operations with the same shared memory, on swap devices of each kind. Each thread
//! has a word of each page, whose value it knows; the last quarter of the pages is cut, punched and allocated
//! meanwhile. In pages, and in large folios of several sizes.

use crate::common::*;
use crate::disk::Disk;
use crate::taken::Taken;
use quire_host::swap::{Completion, SlowConfig, SlowDevice};
use quire_mm::proc::HugeFile;
use std::sync::{Mutex, PoisonError};

const SHARED: MapFlags = MapFlags::SHARED;
const PAGES: u64 = 256;
const KEPT: u64 = 192;
const STEPS: u64 = 3000;

/// What swap is on.
#[derive(Clone, Copy, Debug)]
enum On {
    Disk,
    SlowDisk,
    SlowRam,
    CompressedCache,
}

fn slow() -> SlowConfig {
    SlowConfig { completion: Completion::AfterReaps(3), queue: 4, ..SlowConfig::default() }
}

fn swap_on_this(machine: &Machine, on: On) -> DeviceId {
    match on {
        On::Disk => swap_on(machine, Disk::new(2048).0),
        On::SlowDisk => swap_on(machine, SlowDevice::new(Disk::new(2048).0, slow())),
        On::SlowRam => swap_on_slow_ram(machine, 1024, slow()),
        On::CompressedCache => {
            let disk = SlowDevice::new(Disk::new(2048).0, slow());
            swap_on(machine, machine.memory().create_compressed_cache(disk, 64 * PAGE).unwrap())
        }
    }
}

/// What the threads share.
struct Shared<'m> {
    machine: &'m Machine,
    file: &'m File<'m, HostPlatform>,
    group: Option<MemcgId>,
    /// Memcgs that are still to be removed.
    busy: Mutex<Vec<MemcgId>>,
    /// Calls that change the size are made one at a time.
    size: Mutex<()>,
    device: Mutex<DeviceId>,
    on: On,
}

/// One thread, with its program.
struct Thread<'a> {
    shared: &'a Shared<'a>,
    cpu: &'a Vcpu,
    space: &'a HostSpace<'a>,
    /// The pages mapped shared, and private.
    areas: (VirtAddr, VirtAddr),
    /// Of the page, where this thread's word is.
    at: u64,
    words: Vec<u64>,
    random: Random,
}

impl Thread<'_> {
    fn word(&self, nth: u64) -> VirtAddr {
        page(self.areas.0, nth).checked_add(self.at).unwrap()
    }

    fn step(&mut self, value: u64) {
        let Shared { machine, file, .. } = *self.shared;
        let program = self.cpu.program(self.space);
        let nth = self.random.below(PAGES);
        let some = PAGE * 4.min(PAGES - nth);
        let (here, private) = (page(self.areas.0, nth), page(self.areas.1, nth));
        match self.random.below(25) {
            0..=7 => {
                let written = program.write_u64(self.word(nth), value);
                if written.is_ok() {
                    self.words[nth as usize] = value;
                }
                assert!(written.is_ok() || nth >= KEPT, "page {nth}: {written:?}");
            }
            8..=12 => self.check(nth, program.read_u64(self.word(nth)).ok()),
            13 | 14 => {
                let kept = nth % KEPT;
                let bytes = read_file(file, kept * PAGE + self.at, 8);
                self.check(kept, Some(u64::from_le_bytes(bytes.try_into().unwrap())));
            }
            15 => self.space.madvise(here, some, Advice::PageOut).unwrap(),
            16 => self.space.madvise(here, some, Advice::WillNeed).unwrap(),
            17 => {
                let _one = self.shared.size.lock().unwrap_or_else(PoisonError::into_inner);
                let hole = KEPT + nth % (PAGES - KEPT);
                let begin = hole * PAGE + value % 2 * 64;
                file.punch(begin..(hole + 1) * PAGE, |_| Ok(())).unwrap();
            }
            18 => {
                let _one = self.shared.size.lock().unwrap_or_else(PoisonError::into_inner);
                file.set_size((KEPT + nth % (PAGES - KEPT + 1)) * PAGE - value % 3 * 40).unwrap();
                if value.is_multiple_of(4) {
                    let hole = KEPT + nth % (PAGES - KEPT);
                    // Others may have all that the memcg may have.
                    let _ = file.allocate(hole * PAGE..PAGES * PAGE, true);
                }
            }
            19 => reclaim(machine, 1, 32),
            20 => {
                let child = self.space.fork().unwrap();
                let _ = self.cpu.program(&child).read_u64(here);
                let _ = self.cpu.program(&child).write_u64(private, 3);
            }
            21 => {
                // Past the end of the file it fails, and what it did is undone by munlock.
                let _ = self.space.mlock(here, PAGE, false);
                self.space.munlock(here, PAGE).unwrap();
            }
            22 => {
                if let Ok(pinned) = self.space.pin_page(self.word(nth), Access::Write) {
                    let _ = program.write_u64(private, 9);
                    drop(pinned);
                }
                self.space.madvise(private, PAGE, Advice::DontNeed).unwrap();
            }
            23 => {
                if let Some(group) = self.shared.group {
                    set_limit(machine, group, Limit::Max, 100 + nth % 100);
                }
            }
            24 if self.shared.group.is_some() => {
                // What is charged to the one that it leaves goes to the group.
                let name = format!("{}-{value}", self.at);
                let next = machine.memory().create_memcg(self.shared.group.unwrap(), &name).unwrap();
                self.enter(next);
                if value.is_multiple_of(8) {
                    machine.memory().swap().reparenting().free_numbers();
                }
            }
            _ => self.replace_device(),
        }
    }

    /// The program goes to a memcg, and the one that it was in is removed if it is not the group.
    fn enter(&self, memcg: MemcgId) {
        let before = self.space.memcg();
        self.space.set_memcg(memcg).unwrap();
        if Some(before) != self.shared.group && self.shared.machine.memory().remove_memcg(before).is_err() {
            // Another thread has a child of the program in hand, which exited there.
            self.shared.busy.lock().unwrap_or_else(PoisonError::into_inner).push(before);
        }
    }

    /// What is past the end may have been lost.
    fn check(&self, nth: u64, read: Option<u64>) {
        assert!(nth >= KEPT || read == Some(self.words[nth as usize]), "page {nth} has {read:?}");
    }

    /// Without limits, which the pages of all devices would exceed.
    fn replace_device(&mut self) {
        let machine = self.shared.machine;
        if self.shared.group.is_none()
            && self.random.below(8) == 0
            && let Ok(mut device) = self.shared.device.try_lock()
        {
            let mut looks = 0;
            let is_off = machine.memory().swapoff(*device, || {
                looks += 1;
                looks < 3000
            });
            if is_off.is_ok() {
                *device = swap_on_this(machine, self.shared.on);
            }
        }
    }
}

fn stress(technique: &str, on: On, is_limited: bool) {
    for sizes in [&[][..], &["16kB", "64kB", "256kB"]] {
        stress_of_sizes((technique, on), is_limited, sizes);
    }
}

/// Shared memory comes in large folios of these sizes.
fn stress_of_sizes((technique, on): (&str, On), is_limited: bool, sizes: &[&str]) {
    let machine: Machine = Setup::mib(16)
        .cpus(3)
        .reserve()
        .with(|memory| memory.techniques.set("swap", technique).unwrap())
        .build();
    for size in sizes {
        let file = HugeFile::find(&format!("hugepages-{size}/shmem_enabled")).unwrap();
        file.write(machine.memory(), "always").unwrap();
    }
    let device = Mutex::new(swap_on_this(&machine, on));
    let group = is_limited.then(|| memcg(&machine, "group", &[(Limit::Max, 150)]));
    let taken = Taken::default();
    let file = machine.memory().create_shmem(taken.clone(), PAGES * PAGE).unwrap();
    let spaces = [0; 3].map(|_| {
        let space = create_space(&machine);
        if let Some(group) = group {
            space.set_memcg(group).unwrap();
        }
        space
    });
    let (size, busy) = (Mutex::new(()), Mutex::default());
    let shared = Shared { machine: &machine, file: &file, group, busy, size, device, on };
    on_cpus(&machine, 3, |number, cpu| {
        let space = &spaces[number];
        // Where folios are aligned in the mapping as in the file.
        let areas =
            [(SHARED, VirtAddr(1 << 30)), (MapFlags::empty(), VirtAddr(2 << 30))].map(|(flags, at)| {
                let request = file_request(0, PAGES, RW, flags).at(at, flags | MapFlags::FIXED);
                space.mmap_file(&request, &file).unwrap()
            });
        let seed = 77 * number as u64 + 1;
        let mut thread = Thread {
            shared: &shared,
            cpu,
            space,
            areas: areas.into(),
            at: 8 * number as u64,
            words: vec![0; PAGES as usize],
            random: Random(seed),
        };
        (1..STEPS).for_each(|value| thread.step(value));
        if let Some(group) = group {
            thread.enter(group);
        }
    });
    reap(&machine, 50);
    let figures = file.figures();
    let all = (figures.cached + figures.swapped) as i64;
    assert_eq!((taken.pages(), machine.memory().file_totals().promised as i64), (all, all));
    assert_audit(&machine);
    drop(spaces);
    for memcg in shared.busy.into_inner().unwrap_or_else(PoisonError::into_inner) {
        machine.memory().remove_memcg(memcg).unwrap();
    }
    drop(file);
    reap(&machine, 50);
    reclaim(&machine, 4, 512);
    reap(&machine, 50);
    assert_eq!(taken.pages(), 0);
    assert_eq!(free_slots(&machine), machine.memory().swap().devices().total_slots());
    if let Some(group) = group {
        let stats = machine.memory().memcgs().counters().stats(group);
        let [shmem, file] = [MemcgStat::Shmem, MemcgStat::File].map(|stat| stats[stat as usize]);
        assert_eq!((shmem, file), (0, 0));
        (0..200).for_each(|_| machine.memory().memcgs().lifecycle().sweep());
        let mut memcgs = 0;
        machine.memory().memcgs().tree().for_each_in_subtree(group, |_| memcgs += 1);
        assert_eq!(memcgs, 1, "a number is lost");
    }
}

#[test]
fn beside_reclaim_to_a_disk() {
    stress("all", On::Disk, true);
    stress("bypass", On::Disk, false);
}

#[test]
fn beside_reclaim_to_a_slow_disk() {
    stress("all", On::SlowDisk, true);
    stress("bypass", On::SlowDisk, false);
}

#[test]
fn beside_reclaim_to_slow_ram() {
    stress("all", On::SlowRam, false);
    stress("bypass", On::SlowRam, true);
}

#[test]
fn beside_reclaim_to_a_compressed_cache() {
    stress("all", On::CompressedCache, true);
}
