//! Stores whose memory is limited: the effect of swapping on a client.
//!
//! *Key-value* is the shape of memcached under memtier: ten gets for a set, keys by a normal distribution,
//! values of a KiB, half of the data in memory, the rest on a plain disk in RAM. *Rows* is the shape of a
//! read-only OLTP load: rows of 200 bytes, zipfian, a quarter in memory, the rest compressed, or in a file of
//! the host.

use super::compressed;
use super::latency::{Latencies, add_accesses};
use crate::case::Outcome;
use crate::clock::{now, timed};
use crate::error::LabError;
use crate::experiment::Lab;
use crate::folios::{Folios, pages};
use crate::patterns::{Contents, Patterns};
use crate::process::{Process, Quire};
use crate::report::Metric;
use crate::rounds::{RoundFigures, round_figures};
use crate::scale::MIB;
use crate::site::{HostSpace, Site, page_at};
use fastrand::Rng;
use quire_arch::VirtAddr;
use quire_host::swap::{FileDevice, FileDeviceOptions};
use quire_mm::{Techniques, frame::VmEvent, swap::RamDisk};

/// Bytes that a store holds.
const BYTES: [u64; 3] = [256 * MIB, 32 * MIB, 8 * MIB];
/// Accesses in a round.
const ACCESSES: [u64; 3] = [200_000, 10_000, 1000];
/// Accesses in a round of a store on a file, where they take longer.
const FILE_ACCESSES: [u64; 3] = [5000, 300, 50];
/// Rounds.
pub(super) const ROUNDS: [usize; 3] = [15, 5, 1];

const RATE: Metric = Metric::higher("rate", "1000 operations/s");
const MAJOR: Metric = Metric::lower("major_faults", "per 1000 operations");

/// A value with its key, and a row.
const VALUE: u64 = 1024;
const ROW: u64 = 200;
/// Exponent of the distribution of rows.
const ZIPF: f64 = 0.99;

/// Where pages are swapped to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Where {
    Disk,
    Compressed,
    File,
}

/// What is read and written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    KeyValue,
    Rows,
}

/// A store with its clients.
#[derive(Clone, Copy, Debug)]
struct Kind {
    name: &'static str,
    shape: Shape,
    on: Where,
    folios: Folios,
}

const KINDS: [Kind; 4] = [
    Kind::new("key-value, half in memory, RAM disk", Shape::KeyValue, Where::Disk, Folios::PAGES),
    Kind::new("key-value, half in memory, RAM disk, THP", Shape::KeyValue, Where::Disk, Folios::PMD),
    Kind::new("rows, a quarter in memory, compressed RAM", Shape::Rows, Where::Compressed, Folios::PAGES),
    Kind::new("rows, a quarter in memory, file", Shape::Rows, Where::File, Folios::PAGES),
];

impl Kind {
    const fn new(name: &'static str, shape: Shape, on: Where, folios: Folios) -> Self {
        Self { name, shape, on, folios }
    }

    fn limit(&self, bytes: u64) -> u64 {
        if self.shape == Shape::KeyValue { bytes / 2 } else { bytes / 4 }
    }

    /// A machine for a store of so many bytes.
    fn site(&self, techniques: Techniques, bytes: u64) -> Result<Site, LabError> {
        // Tables of words may be needed when everything is full.
        let slots = pages(bytes + bytes / 4);
        let in_ram = if self.on == Where::File { 0 } else { bytes + bytes / 4 };
        let room = self.limit(bytes) + in_ram + bytes / 4;
        let site = Site::new(techniques, room, 1, self.folios.config())?;
        match self.on {
            Where::Disk => site.with_swap(|machine| Ok(RamDisk::new(machine.memory().frames(), slots)?)),
            Where::Compressed => site.with_swap(|machine| compressed(machine, slots)),
            Where::File => site.with_swap(|machine| {
                let platform = machine.memory().platform();
                let opened = FileDevice::temporary(platform, slots, FileDeviceOptions::default());
                opened.map_err(LabError::Device)
            }),
        }
    }
}

/// Numbers below `count`, small ones most often, by a power law (after Gray and others).
#[derive(Clone, Debug)]
struct Zipf {
    count: f64,
    eta: f64,
    zeta: f64,
}

impl Zipf {
    fn new(count: u64) -> Self {
        let zeta = (1..=count).map(|number| (number as f64).powf(-ZIPF)).sum::<f64>();
        let two = 1.0 + 0.5f64.powf(ZIPF);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - ZIPF)) / (1.0 - two / zeta);
        Self { count: count as f64, eta, zeta }
    }

    fn next(&self, random: &mut Rng) -> u64 {
        let uniform = random.f64();
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(ZIPF) {
            return 1;
        }
        let place = (self.eta * uniform - self.eta + 1.0).powf(1.0 / (1.0 - ZIPF));
        (self.count * place).min(self.count - 1.0) as u64
    }
}

/// Numbers below `count` by a normal distribution around the middle, of a sixth of it (memtier's `G:G`).
fn normal(count: u64, random: &mut Rng) -> u64 {
    loop {
        let sum: f64 = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let place = count as f64 * (0.5 + sum / 6.0);
        if (0.0..count as f64).contains(&place) {
            return place as u64;
        }
    }
}

/// A store under one strategy, with its clients.
struct Store<'s> {
    site: &'s Site,
    space: &'s HostSpace<'s>,
    kind: Kind,
    items: u64,
    zipf: Option<Zipf>,
    random: Rng,
    latencies: Latencies,
    major: u64,
    operations: u64,
}

impl<'s> Store<'s> {
    /// One that is filled.
    fn new(site: &'s Site, space: &'s HostSpace<'s>, kind: Kind, bytes: u64) -> Result<Self, LabError> {
        site.limit(space, kind.limit(bytes))?;
        let mut process = Quire::new(site, space);
        process.map(0, bytes)?;
        process.fill(0..pages(bytes), kind.folios, &Patterns::of(Contents::Half))?;
        let items = bytes / if kind.shape == Shape::KeyValue { VALUE } else { ROW };
        Ok(Self {
            site,
            space,
            kind,
            items,
            zipf: (kind.shape == Shape::Rows).then(|| Zipf::new(items)),
            random: Rng::with_seed(7),
            latencies: Latencies::default(),
            major: 0,
            operations: 0,
        })
    }

    fn major_faults(&self) -> u64 {
        self.site.machine.memory().frames().events().sum(VmEvent::Pgmajfault)
    }

    /// The time of an access on the clock, and its cost.
    fn round(&mut self, accesses: u64, counts: bool) -> Result<RoundFigures, LabError> {
        let major = self.major_faults();
        let (mut latencies, random, zipf, items) =
            (Latencies::default(), &mut self.random, &self.zipf, self.items);
        let key_value = self.kind.shape == Shape::KeyValue;
        let program = self.site.vcpu.program(self.space);
        let mut bytes = [0; VALUE as usize];
        let (done, [clock, cpu]) = timed(|| {
            program.inside(|guest| {
                for _ in 0..accesses {
                    let (item, size, set) = match zipf {
                        // Popular rows are at random places.
                        Some(zipf) => {
                            (zipf.next(random).wrapping_mul(0x9e37_79b9_7f4a_7c15) % items, ROW, false)
                        }
                        None => (normal(items, random), VALUE, random.u8(..11) == 0),
                    };
                    let addr = VirtAddr(page_at(0).0 + item * size);
                    let part = &mut bytes[..size as usize];
                    let begin = now();
                    let done =
                        if set && key_value { guest.write(addr, part) } else { guest.read(addr, part) };
                    latencies.add(now() - begin);
                    done.map_err(|error| LabError::Access(addr, error))?;
                }
                Ok::<(), LabError>(())
            })
        });
        done?;
        if counts {
            self.latencies.merge(&latencies);
            self.major += self.major_faults() - major;
            self.operations += accesses;
        }
        // Time of a file's I/O is not on this thread's CPU; all else is.
        let cost = if self.kind.on == Where::File { clock } else { cpu };
        Ok(round_figures([clock, cost].map(|time| time / accesses as f64)))
    }
}

pub(super) fn part(lab: &mut Lab<'_>) -> Result<(), LabError> {
    let (bytes, rounds) = (lab.scale.of(BYTES), lab.scale.of(ROUNDS));
    lab.part(format!("Stores of {} MiB whose memory is limited", bytes / MIB));
    for kind in KINDS {
        let accesses = lab.scale.of(if kind.on == Where::File { FILE_ACCESSES } else { ACCESSES });
        lab.case(kind.name, |case, name| {
            let make = |techniques| kind.site(techniques, bytes);
            case.on_sites(make, |case, spaces| {
                let stores = spaces.iter().map(|(site, space)| Store::new(site, space, kind, bytes));
                let mut stores = stores.collect::<Result<Vec<_>, _>>()?;
                let outcome = Outcome::in_rounds(&mut stores, None, (1, rounds), |store, number| {
                    store.round(accesses, number > 0)
                })?;
                case.rows(name, &outcome, &[(RATE, 0, |times| 1e6 / times.median())]);
                add_accesses(case, name, &stores, |store| &store.latencies);
                let major = |store: &Store<'_>| 1000.0 * store.major as f64 / store.operations.max(1) as f64;
                case.of_each(name, &stores, &[(MAJOR, &major)]);
                case.ratio(name, &outcome, 1);
                Ok(())
            })
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::technique::SWAP;

    /// A user's link waits in the folder for temporary files, under a name that can be guessed.
    #[test]
    fn a_link_in_the_folder_for_temporary_files_is_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let letter = folder.path().join("letter");
        std::fs::write(&letter, "a letter").unwrap();
        let kind = KINDS[3];
        assert_eq!(kind.on, Where::File);
        for techniques in SWAP.each() {
            let name = format!("quire-lab-{}-{}", std::process::id(), techniques.swap.name());
            let link = tempfile::env::temp_dir().join(name);
            std::os::unix::fs::symlink(&letter, &link).unwrap();
            let site = kind.site(techniques, 4 * MIB).map(drop);
            std::fs::remove_file(&link).ok();
            site.unwrap();
            assert_eq!(std::fs::read(&letter).unwrap(), b"a letter");
        }
    }

    #[test]
    fn small_numbers_are_most_often_asked_for() {
        let (zipf, mut random) = (Zipf::new(1000), Rng::with_seed(1));
        let drawn: Vec<u64> = (0..20_000).map(|_| zipf.next(&mut random)).collect();
        let below = |limit| drawn.iter().filter(|&&number| number < limit).count();
        assert!(drawn.iter().all(|&number| number < 1000));
        // A tenth of all items has about two thirds of the accesses.
        assert!((2200..3200).contains(&below(1)), "{}", below(1));
        assert!((12_500..14_500).contains(&below(100)), "{}", below(100));
    }

    #[test]
    fn keys_lie_around_the_middle() {
        let mut random = Rng::with_seed(1);
        let drawn: Vec<u64> = (0..20_000).map(|_| normal(6000, &mut random)).collect();
        let inside = drawn.iter().filter(|&&key| (2000..4000).contains(&key)).count();
        assert!((13_300..14_000).contains(&inside), "{inside}");
    }
}
