//! Random operations on a file that is collapsed while none writes to it: a model knows a word of each page,
//! of the file and of the copies that programs have made.

use crate::common::*;
use crate::only_read::{AREA, collapse, huge, map, only_read, setup};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PAGES: u64 = 1536;
const SHARED: MapFlags = MapFlags::SHARED;
/// Where those who write map the file.
const WRITTEN: VirtAddr = VirtAddr(AREA.0 + 8 * MIB2);

struct Program<'m> {
    space: HostSpace<'m>,
    copies: BTreeMap<u64, u64>,
}

struct Scene<'m> {
    machine: &'m Machine,
    file: File<'m, HostPlatform>,
    writer: Option<File<'m, HostPlatform>>,
    store: Arc<FileStore>,
    programs: Vec<Program<'m>>,
    /// The first word of each page.
    words: Vec<u64>,
    size: u64,
    random: Random,
    fails: bool,
}

impl<'m> Scene<'m> {
    fn new(machine: &'m Machine, seed: u64) -> Self {
        let (file, store) = only_read(machine, PAGES);
        let space = create_space(machine);
        map(&space, &file, PAGES, MapFlags::empty());
        space.mprotect(AREA, PAGES * PAGE, RW, false).unwrap();
        Self {
            machine,
            file,
            writer: None,
            store,
            programs: vec![Program { space, copies: BTreeMap::new() }],
            words: (1..=PAGES).collect(),
            size: PAGES,
            random: Random(seed),
            fails: false,
        }
    }

    fn word(&self, nth: u64) -> Option<u64> {
        (nth < self.size).then(|| self.words[nth as usize])
    }

    fn read(&mut self, cpu: &Vcpu, nth: u64) {
        let who = self.random.below(self.programs.len() as u64) as usize;
        let program = &self.programs[who];
        let wanted = program.copies.get(&nth).copied().or(self.word(nth));
        match cpu.program(&program.space).read_u64(page(AREA, nth)) {
            Err(AccessError::Fault(FaultError::Bus)) if self.fails => {}
            found => assert_eq!(found.ok(), wanted, "page {nth} of program {who}"),
        }
    }

    fn write_copy(&mut self, cpu: &Vcpu, nth: u64, value: u64) {
        let who = self.random.below(self.programs.len() as u64) as usize;
        let program = &mut self.programs[who];
        if cpu.program(&program.space).write_u64(page(AREA, nth), value).is_ok() {
            program.copies.insert(nth, value);
        }
    }

    /// What needs the file to be open for writing.
    fn change(&mut self, cpu: &Vcpu, nth: u64, value: u64) {
        let Some(writer) = &self.writer else { return };
        assert_eq!(huge(self.machine), 0, "it is written to");
        match self.random.below(8) {
            0..=2 => {
                let done = writer.write(nth * PAGE, &mut Buffer::new(&mut value.to_le_bytes()));
                if done.bytes == 8 {
                    // It ends within a page then, whose other words are none of the model's.
                    self.size = self.size.max(nth + 1);
                    self.words[nth as usize] = value;
                }
                assert!(done.bytes == 8 || self.fails, "{done:?}");
            }
            3..=5 if nth < self.size => {
                let written = cpu.program(&self.programs[0].space).write_u64(page(WRITTEN, nth), value);
                assert!(written.is_ok() || self.fails, "{written:?}");
                if written.is_ok() {
                    self.words[nth as usize] = value;
                }
            }
            6 => {
                let size = if self.random.chance(80) { PAGES } else { nth };
                writer.set_size(size * PAGE).unwrap();
                self.words[size.min(self.size) as usize..].fill(0);
                self.store.bytes.lock().unwrap().truncate((size.min(self.size) * PAGE) as usize);
                self.size = size;
                self.programs.iter_mut().for_each(|program| program.copies.retain(|&page, _| page < size));
            }
            _ => {
                let end = (nth + self.random.below(600)).min(self.size).max(nth);
                writer.punch(nth * PAGE..end * PAGE, |hole| self.store.free(hole)).unwrap();
                self.words[nth as usize..end as usize].fill(0);
            }
        }
    }

    fn open_or_close(&mut self) {
        let first = &self.programs[0].space;
        if let Some(writer) = self.writer.take() {
            first.munmap(WRITTEN, PAGES * PAGE).unwrap();
            drop(writer);
            return;
        }
        let writer = self.file.open(Access::Write).unwrap();
        let request = file_request(0, PAGES, RW, SHARED).at(WRITTEN, SHARED | MapFlags::FIXED);
        first.mmap_file(&request, &writer).unwrap();
        self.writer = Some(writer);
    }

    fn step(&mut self, cpu: &Vcpu, value: u64) {
        let nth = self.random.below(PAGES);
        match self.random.below(100) {
            0..=39 => self.read(cpu, nth),
            40..=42 => self.write_copy(cpu, nth, value),
            43..=62 => self.change(cpu, nth, value),
            63..=69 => self.open_or_close(),
            70..=84 => {
                let who = self.random.below(self.programs.len() as u64) as usize;
                let block = page(AREA, nth / 512 * 512);
                let result = collapse(&self.programs[who].space, block, MIB2);
                let is_refused = matches!(result, Err(Errno::EINVAL | Errno::EAGAIN));
                assert!(is_refused || result.is_ok() && self.writer.is_none(), "{result:?}");
            }
            85..=87 => _ = self.machine.memory().khugepaged_step(),
            88 => _ = self.file.sync(ALL, false),
            89 => _ = self.file.invalidate(ALL),
            90 | 91 => {
                let who = self.random.below(self.programs.len() as u64) as usize;
                let program = &mut self.programs[who];
                let end = nth + 1 + self.random.below(PAGES - nth);
                program.space.madvise(page(AREA, nth), (end - nth) * PAGE, Advice::DontNeed).unwrap();
                program.copies.retain(|page, _| !(nth..end).contains(page));
            }
            // What forks maps shared, too, and keeps the file open.
            92 if self.programs.len() < 3 && self.writer.is_none() => {
                let Program { space, copies } = &self.programs[0];
                let child = Program { space: space.fork().unwrap(), copies: copies.clone() };
                self.programs.push(child);
            }
            93 if self.programs.len() > 1 => _ = self.programs.pop(),
            94 => {
                self.fails = self.random.chance(30);
                self.store.fails_reads.store(self.fails, Ordering::Relaxed);
            }
            95 => {
                let (space, len) = (&self.programs[0].space, PAGE * (PAGES - nth).min(40));
                space.mlock(page(AREA, nth), len, true).unwrap();
                space.munlock(page(AREA, nth), len).unwrap();
            }
            _ => {}
        }
    }
}

#[test]
fn each_word_of_a_collapsed_file_is_the_one_that_was_written_last() {
    for seed in 0..setting("QUIRE_SEEDS", 3) {
        let machine = setup(64).with(|memory| memory.huge.policy = HugePolicy::default()).build();
        machine.memory().huge().change(|policy| policy.with_enabled(HugeEnabled::Always));
        machine.memory().huge().set_khugepaged(KhugepagedSetting::PagesToScan, 1).unwrap();
        let cpu = machine.vcpu(0).unwrap();
        let mut scene = Scene::new(&machine, 7000 + seed);
        let mut most = 0;
        for nth in 0..setting("QUIRE_OPS", 4000) {
            scene.step(&cpu, 1_000_000 + nth);
            most = most.max(huge(&machine));
            if nth % 200 == 0 {
                assert_audit(&machine);
            }
        }
        assert!(most > 512, "seed {seed}: {most} pages were of large folios at most");
        let Scene { file, writer, programs, store, words, size, .. } = scene;
        drop(writer);
        drop(programs);
        store.fails_reads.store(false, Ordering::Relaxed);
        let bytes = read_file(&file, 0, (size * PAGE) as usize);
        for (nth, page) in bytes.chunks_exact(PAGE as usize).enumerate() {
            assert_eq!(u64::from_le_bytes(page[..8].try_into().unwrap()), words[nth], "page {nth}");
        }
    }
}
