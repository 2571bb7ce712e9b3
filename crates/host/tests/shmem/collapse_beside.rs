//! What programs do with shared memory beside its collapse. Each thread has a word of each page, whose value
//! it knows; the last block is cut and punched meanwhile.

use crate::common::*;
use crate::disk::Disk;
use crate::large::set;
use crate::taken::Taken;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const SHARED: MapFlags = MapFlags::SHARED;
/// Pages of the file, and those of them that are never cut.
const PAGES: u64 = 2048;
const KEPT: u64 = 1536;
const STEPS: u64 = 1500;

/// What the threads share.
struct Shared<'m> {
    machine: &'m Machine,
    file: &'m File<'m, HostPlatform>,
    /// Calls that change the size are made one at a time.
    size: Mutex<()>,
    collapsed: AtomicU64,
}

/// One thread, with its program.
struct Thread<'a> {
    shared: &'a Shared<'a>,
    cpu: &'a Vcpu,
    space: &'a HostSpace<'a>,
    /// The pages mapped shared, and private.
    areas: [VirtAddr; 2],
    /// Of the page, where this thread's word is.
    at: u64,
    words: Vec<u64>,
    random: Random,
}

impl Thread<'_> {
    fn word(&self, nth: u64) -> VirtAddr {
        page(self.areas[0], nth).checked_add(self.at).unwrap()
    }

    /// What is past the end, or in a hole, may have been lost.
    fn check(&self, nth: u64, read: Option<u64>) {
        assert!(nth >= KEPT || read == Some(self.words[nth as usize]), "page {nth} has {read:?}");
    }

    fn step(&mut self, value: u64) {
        let Shared { machine, file, .. } = *self.shared;
        let program = self.cpu.program(self.space);
        // Some pages are met often.
        let nth = self.random.below(4) * 512
            + self.random.below(512) % if value.is_multiple_of(2) { 8 } else { 512 };
        let here = page(self.areas[0], nth);
        match self.random.below(26) {
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
            15 => {
                let kept = nth % KEPT;
                write_file(file, kept * PAGE + self.at, &value.to_le_bytes());
                self.words[kept as usize] = value;
            }
            16 => self.space.madvise(here, PAGE * 64.min(PAGES - nth), Advice::PageOut).unwrap(),
            17 => {
                let _one = self.shared.size.lock().unwrap_or_else(PoisonError::into_inner);
                let begin = KEPT + nth % (PAGES - KEPT);
                file.punch(begin * PAGE..(begin + 1 + value % 40) * PAGE, |_| Ok(())).unwrap();
            }
            18 => {
                let _one = self.shared.size.lock().unwrap_or_else(PoisonError::into_inner);
                file.set_size((KEPT + nth % (PAGES - KEPT + 1)) * PAGE).unwrap();
            }
            19 => reclaim(machine, 1, 64),
            20 => {
                let child = self.space.fork().unwrap();
                let _ = self.cpu.program(&child).read_u64(here);
                let _ = self.cpu.program(&child).write_u64(page(self.areas[1], nth), 3);
            }
            21 => {
                if let Ok(pinned) = self.space.pin_page(self.word(nth), Access::Write) {
                    let _ = program.read_u64(page(self.areas[1], nth));
                    drop(pinned);
                }
            }
            22 => {
                let private = page(self.areas[1], nth);
                let _ = program.write_u64(private, 9);
                self.space.madvise(private, PAGE, Advice::DontNeed).unwrap();
            }
            23 => _ = machine.memory().khugepaged_step(),
            _ => {
                let area = self.areas[usize::from(value.is_multiple_of(5))];
                let block = page(area, nth / 512 * 512);
                let made = self.space.madvise(block, MIB2, Advice::Collapse);
                self.shared.collapsed.fetch_add(u64::from(made.is_ok()), Ordering::Relaxed);
            }
        }
    }
}

fn stress(word: &str, size: Option<&str>) {
    let machine: Machine = Setup::mib(40).cpus(3).reserve().build();
    swap_on(&machine, Disk::new(4096).0);
    set(&machine, "shmem_enabled", word);
    if let Some(size) = size {
        set(&machine, &format!("hugepages-{size}/shmem_enabled"), "always");
    }
    let taken = Taken::default();
    let file = machine.memory().create_shmem(taken.clone(), PAGES * PAGE).unwrap();
    let spaces = [0; 3].map(|_| create_space(&machine));
    let shared =
        Shared { machine: &machine, file: &file, size: Mutex::new(()), collapsed: AtomicU64::new(0) };
    on_cpus(&machine, 3, |number, cpu| {
        let space = &spaces[number];
        let areas = [(SHARED, GIB), (MapFlags::empty(), 2 * GIB)].map(|(flags, at)| {
            let flags = flags | MapFlags::FIXED;
            space.mmap_file(&file_request(0, PAGES, RW, flags).at(VirtAddr(at), flags), &file).unwrap()
        });
        let mut thread = Thread {
            shared: &shared,
            cpu,
            space,
            areas,
            at: 8 * number as u64,
            words: vec![0; PAGES as usize],
            random: Random(91 * number as u64 + setting("QUIRE_SEED", 1)),
        };
        (1..setting("QUIRE_STEPS", STEPS)).for_each(|value| thread.step(value));
        (0..KEPT).for_each(|nth| thread.check(nth, cpu.program(space).read_u64(thread.word(nth)).ok()));
    });
    assert!(shared.collapsed.load(Ordering::Relaxed) > 10, "hardly any block was collapsed");
    reap(&machine, 50);
    let figures = file.figures();
    let all = (figures.cached + figures.swapped) as i64;
    assert_eq!((taken.pages(), machine.memory().file_totals().promised as i64), (all, all));
    assert_audit(&machine);
    drop(spaces);
    drop(file);
    reap(&machine, 50);
    assert_eq!(taken.pages(), 0);
    assert_eq!(free_slots(&machine), machine.memory().swap().devices().total_slots());
}

#[test]
fn beside_faults_holes_page_out_and_pins() {
    stress("advise", None);
    stress("always", Some("64kB"));
}
