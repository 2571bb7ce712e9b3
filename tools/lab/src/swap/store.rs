//! Stores whose memory is limited: the effect of swapping on a client.
//!
//! *Key-value* is the shape of memcached under memtier: ten gets for a set, keys by a normal distribution,
//! values of a KiB, half of the data in memory, the rest on a plain disk in RAM. *Rows* is the shape of a
//! read-only OLTP load: rows of 200 bytes, zipfian, a quarter in memory, the rest compressed, or in a file of
//! the host.

use super::Scale;
use super::latency::{ACCESSES, Latencies};
use super::stage::{Contents, Patterns, Stage, on_stages, page_at, timed};
use crate::contest::Outcome;
use crate::error::LabError;
use crate::experiment::{Measured, Part};
use crate::folios::{Folios, pages};
use crate::linux::{RoundFigures, now, round_figures};
use crate::report::{Figure, Metric};
use crate::site::HostSpace;
use fastrand::Rng;
use quire_arch::{PAGE_SIZE, VirtAddr};
use quire_host::swap::{FileDevice, FileDeviceOptions};
use quire_mm::{frame::VmEvent, swap::RamDisk};
use quire_swap::SwapTechnique;

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

#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    shape: Shape,
    on: Where,
    folios: Folios,
}

const CASES: [Case; 4] = [
    Case::new("key-value, half in memory, RAM disk", Shape::KeyValue, Where::Disk, Folios::PAGES),
    Case::new("key-value, half in memory, RAM disk, THP", Shape::KeyValue, Where::Disk, Folios::PMD),
    Case::new("rows, a quarter in memory, compressed RAM", Shape::Rows, Where::Compressed, Folios::PAGES),
    Case::new("rows, a quarter in memory, file", Shape::Rows, Where::File, Folios::PAGES),
];

impl Case {
    const fn new(name: &'static str, shape: Shape, on: Where, folios: Folios) -> Self {
        Self { name, shape, on, folios }
    }

    fn limit(&self, bytes: u64) -> u64 {
        if self.shape == Shape::KeyValue { bytes / 2 } else { bytes / 4 }
    }

    fn accesses(&self, scale: &Scale) -> u64 {
        if self.on == Where::File { scale.file_accesses } else { scale.accesses }
    }

    fn stage(&self, technique: SwapTechnique, scale: &Scale) -> Result<Stage, LabError> {
        // Tables of words may be needed when everything is full.
        let slots = pages(scale.store + scale.store / 4);
        let in_ram = if self.on == Where::File { 0 } else { scale.store + scale.store / 4 };
        let room = (self.limit(scale.store) + in_ram + scale.store / 4, 1);
        match self.on {
            Where::Disk => Stage::new(technique, room, self.folios, |site| {
                Ok(RamDisk::new(site.machine().memory().frames(), slots)?)
            }),
            Where::Compressed => Stage::compressed(technique, room, self.folios, slots),
            Where::File => Stage::new(technique, room, self.folios, |site| {
                let platform = site.machine().memory().platform();
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
    stage: &'s Stage,
    space: &'s HostSpace<'s>,
    shape: Shape,
    items: u64,
    zipf: Option<Zipf>,
    random: Rng,
    waits: bool,
    latencies: Latencies,
    major: u64,
    operations: u64,
}

impl<'s> Store<'s> {
    fn new(stage: &'s Stage, space: &'s HostSpace<'s>, case: &Case, bytes: u64) -> Self {
        let (shape, waits) = (case.shape, case.on == Where::File);
        let items = bytes / if shape == Shape::KeyValue { VALUE } else { ROW };
        Self {
            stage,
            space,
            shape,
            items,
            zipf: (shape == Shape::Rows).then(|| Zipf::new(items)),
            random: Rng::with_seed(7),
            waits,
            latencies: Latencies::default(),
            major: 0,
            operations: 0,
        }
    }

    fn major_faults(&self) -> u64 {
        self.stage.machine().memory().frames().events().sum(VmEvent::Pgmajfault)
    }

    /// The time of an access on the clock, and its cost.
    fn round(&mut self, accesses: u64, counts: bool) -> Result<RoundFigures, LabError> {
        let major = self.major_faults();
        let (mut latencies, random, zipf, items) =
            (Latencies::default(), &mut self.random, &self.zipf, self.items);
        let key_value = self.shape == Shape::KeyValue;
        let program = self.stage.vcpu().program(self.space);
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
        let cost = if self.waits { clock } else { cpu };
        Ok(round_figures([clock, cost].map(|time| time / accesses as f64)))
    }
}

pub(super) fn part(scale: &Scale) -> Part<'_, SwapTechnique> {
    let title = format!("Stores of {} MiB whose memory is limited", scale.store >> 20);
    Part::new(title, CASES, |case| case.name.to_owned(), |_, case| measure(&case, scale))
}

fn measure(case: &Case, scale: &Scale) -> Result<Measured<SwapTechnique>, LabError> {
    let patterns = Patterns::of(Contents::Half);
    let program = (scale.store, Some(case.limit(scale.store)));
    let (figures, findings) = on_stages(
        program,
        |technique| case.stage(technique, scale),
        |programs| {
            let mut stores = Vec::new();
            for (stage, space) in programs {
                stage.fill(space, (0, scale.store / PAGE_SIZE), &patterns)?;
                stores.push((stage.technique, Store::new(stage, space, case, scale.store)));
            }
            let outcome = Outcome::in_rounds(&mut stores, &mut None, (1, scale.rounds), |store, number| {
                store.round(case.accesses(scale), number > 0)
            })?;
            let of_store = |metric, value: &dyn Fn(&Store<'_>) -> f64| {
                Figure::of_each(case.name, metric, &stores, value)
            };
            let waits =
                ACCESSES.map(|(metric, part)| of_store(metric, &|store| store.latencies.within(part)));
            let rate = outcome.figure(case.name, RATE, 0, |times| 1e6 / times.median());
            let others = [
                of_store(MAJOR, &|store| 1000.0 * store.major as f64 / store.operations.max(1) as f64),
                outcome.ratio(case.name, 1),
            ];
            Ok([rate].into_iter().chain(waits).chain(others).collect::<Vec<_>>())
        },
    )?;
    Ok(Measured::new(figures, findings))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user's link waits in the folder for temporary files, under a name that can be guessed.
    #[test]
    fn a_link_in_the_folder_for_temporary_files_is_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let letter = folder.path().join("letter");
        std::fs::write(&letter, "a letter").unwrap();
        let (case, scale) = (&CASES[3], Scale { store: 4 << 20, ..Scale::QUICK });
        assert_eq!(case.on, Where::File);
        for technique in [SwapTechnique::Bypass, SwapTechnique::All] {
            let name = format!("quire-lab-{}-{}", std::process::id(), technique.name());
            let link = tempfile::env::temp_dir().join(name);
            std::os::unix::fs::symlink(&letter, &link).unwrap();
            let stage = case.stage(technique, &scale).map(drop);
            std::fs::remove_file(&link).ok();
            stage.unwrap();
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
