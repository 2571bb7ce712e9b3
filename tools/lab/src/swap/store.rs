//! Stores whose memory is limited: the effect of swapping on a client.
//!
//! *Key-value* is the shape of memcached under memtier: ten gets for a set, keys by a normal distribution,
//! values of a KiB, half of the data in memory, the rest on a plain disk in RAM. *Rows* is the shape of a
//! read-only OLTP load: rows of 200 bytes, zipfian, a quarter in memory, the rest compressed, or in a file of
//! the host.

use super::compressed;
use super::latency::{Latencies, access_rows};
use crate::clock::timed;
use crate::patterns::{Contents, Patterns};
use crate::prelude::*;
use crate::site::page_at;
use fastrand::Rng;
use quire_arch::VirtAddr;
use quire_host::swap::{FileDevice, FileDeviceOptions};
use quire_mm::{frame::VmEvent, swap::RamDisk};

/// Bytes that a store holds.
const BYTES: [u64; 3] = [256 * MIB, 32 * MIB, 8 * MIB];
/// Accesses in a round.
const ACCESSES: [u64; 3] = [200_000, 10_000, 1000];
/// Accesses in a round of a store on a file, where they take longer.
const FILE_ACCESSES: [u64; 3] = [5000, 300, 50];
/// Rounds.
pub(super) const ROUNDS: [usize; 3] = [15, 5, 1];

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

/// A store with its clients: its name, what part of it fits into memory, the bytes of an item, where the rest
/// goes, and the folios of the memory.
#[derive(Clone, Copy, Debug)]
struct Kind(&'static str, u64, u64, Where, Folios);

const KINDS: [Kind; 4] = [
    Kind("key-value, half in memory, RAM disk", 2, VALUE, Where::Disk, Folios::PAGES),
    Kind("key-value, half in memory, RAM disk, THP", 2, VALUE, Where::Disk, Folios::PMD),
    Kind("rows, a quarter in memory, compressed RAM", 4, ROW, Where::Compressed, Folios::PAGES),
    Kind("rows, a quarter in memory, file", 4, ROW, Where::File, Folios::PAGES),
];

impl Kind {
    /// A machine for a store of so many bytes.
    fn site(&self, techniques: Techniques, bytes: u64) -> Done<Site> {
        // Tables of words may be needed when everything is full.
        let slots = pages(bytes + bytes / 4);
        let &Self(_, part, _, on, folios) = self;
        let in_ram = if on == Where::File { 0 } else { bytes + bytes / 4 };
        let site = Site::new(techniques, bytes / part + in_ram + bytes / 4, 1, folios)?;
        match on {
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

/// Rounds of `accesses` accesses to a filled store. Figures are the time of an access on the clock, and its
/// cost; and of all rounds that count times of accesses, and major faults for 1000.
fn store<'s>(
    site: &'s Site,
    space: &'s HostSpace<'s>,
    kind: Kind,
    (bytes, accesses): (u64, u64),
) -> Done<Rounds<'s>> {
    let Kind(_, part, size, on, folios) = kind;
    site.limit(space, bytes / part)?;
    let mut process = Quire::new(site, space);
    process.map(0, bytes)?;
    process.fill(0..pages(bytes), folios, &Patterns::of(Contents::Half))?;
    let items = bytes / size;
    let zipf = (size == ROW).then(|| Zipf::new(items));
    let mut random = Rng::with_seed(7);
    let (mut all, mut major, mut operations) = (Latencies::default(), 0, 0);
    let (events, program) = (site.machine.memory().frames().events(), site.vcpu.program(space));
    let mut data = [0; VALUE as usize];
    Ok(Box::new(move |number| {
        let mut latencies = Latencies::default();
        let before = events.sum(VmEvent::Pgmajfault);
        let (done, [clock, cpu]) = timed(|| {
            program.inside(|guest| {
                for _ in 0..accesses {
                    let (item, set) = match &zipf {
                        // Popular rows are at random places.
                        Some(zipf) => {
                            (zipf.next(&mut random).wrapping_mul(0x9e37_79b9_7f4a_7c15) % items, false)
                        }
                        None => (normal(items, &mut random), random.u8(..11) == 0),
                    };
                    let addr = VirtAddr(page_at(0).0 + item * size);
                    let part = &mut data[..size as usize];
                    let begin = now();
                    let done = if set { guest.write(addr, part) } else { guest.read(addr, part) };
                    latencies.add(now() - begin);
                    done.map_err(|error| LabError::Access(addr, error))?;
                }
                Ok::<(), LabError>(())
            })
        });
        done?;
        if number > 0 {
            all.merge(&latencies);
            major += events.sum(VmEvent::Pgmajfault) - before;
            operations += accesses;
        }
        // Time of a file's I/O is not on this thread's CPU; all else is.
        let cost = if on == Where::File { clock } else { cpu };
        let [p50, p99, p999] = all.accesses();
        let faults = 1000.0 * major as f64 / operations.max(1) as f64;
        Ok(round_figures(&[clock / accesses as f64, cost / accesses as f64, p50, p99, p999, faults]))
    }))
}

pub(super) fn part(lab: &mut Lab<'_>) -> Done {
    let (bytes, rounds) = (lab.scale.of(BYTES), lab.scale.of(ROUNDS));
    lab.part(format!("Stores of {} MiB whose memory is limited", bytes / MIB));
    let rate = Row::higher("rate", "1000 operations/s", 0, |times| 1e6 / times.median());
    let major = Row::lower("major_faults", "per 1000 operations", 5, Series::last);
    let [p50, p99, p999] = access_rows(2);
    for kind in KINDS {
        let accesses = lab.scale.of(if kind.3 == Where::File { FILE_ACCESSES } else { ACCESSES });
        lab.case(kind.0, |lab| {
            let make = |techniques| kind.site(techniques, bytes);
            let outcome = lab.on_sites((1, rounds), None, make, |site, space| {
                store(site, space, kind, (bytes, accesses))
            })?;
            lab.rows(kind.0, &outcome, &[rate, p50, p99, p999, major, Row::Ratio(1)]);
            Ok(())
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
        assert_eq!(kind.3, Where::File);
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
