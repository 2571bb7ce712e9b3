//! Random operations on one file by several programs: a model knows each word of the file and of each copy.

use crate::common::*;
use crate::disk::{Disk, Medium, lock};
use quire_frame::FolioCounter;
use quire_mm::proc::HugeFile;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Pages that a file of small folios may have, and one of large ones.
const PAGES: [u64; 2] = [40, 1100];
const WORDS: u64 = PAGE / 8;

/// A mapping of a program, with the copies that it has made of pages.
#[derive(Clone)]
struct Area {
    addr: VirtAddr,
    first: u64,
    pages: u64,
    shared: bool,
    copies: BTreeMap<u64, Vec<u64>>,
}

impl Area {
    /// Where aligned blocks of the file are at aligned addresses.
    fn blocks(&self) -> impl Iterator<Item = VirtAddr> + use<> {
        let (first, end, start) = (self.first, self.first + self.pages, self.addr);
        let whole = (first.div_ceil(512)..end / 512).map(move |nth| page(start, nth * 512 - first));
        whole.filter(|block| block.0.is_multiple_of(MIB2))
    }
}

/// The file as it must be.
struct Model {
    words: Vec<u64>,
    size: u64,
}

impl Model {
    fn page(&self, page: u64) -> Vec<u64> {
        let at = (page * WORDS) as usize;
        self.words[at..at + WORDS as usize].to_vec()
    }

    fn has(&self, page: u64) -> bool {
        page * PAGE < self.size
    }

    fn set_size(&mut self, size: u64) {
        let least = size.min(self.size) as usize / 8;
        self.words[least..].fill(0);
        self.size = size;
    }
}

/// What a program that fails to access a page may be told.
fn is_failure(error: &AccessError<FaultError>) -> bool {
    *error == AccessError::Fault(FaultError::Bus)
}

struct Scene<'m> {
    file: File<'m, HostPlatform>,
    model: Model,
    programs: Vec<(HostSpace<'m>, Vec<Area>)>,
    random: Random,
    next: u64,
    /// Whether reads may fail at this moment.
    fails: bool,
    /// Mappings that were made.
    mapped: u64,
    /// Pages that the file may have.
    pages: u64,
    /// Whether it may have folios of the PMD's order.
    is_huge: bool,
    /// Whether large folios are mapped past the end, too.
    maps_past_end: bool,
}

impl<'m> Scene<'m> {
    /// An empty file of so many pages at most, and a program.
    fn new(
        (file, space): (File<'m, HostPlatform>, HostSpace<'m>),
        seed: u64,
        (pages, is_huge): (u64, bool),
    ) -> Self {
        Self {
            file,
            model: Model { words: vec![0; (pages * WORDS) as usize], size: 0 },
            programs: vec![(space, Vec::new())],
            random: Random(seed),
            next: 0,
            fails: false,
            mapped: 0,
            pages,
            is_huge,
            maps_past_end: false,
        }
    }

    fn new_value(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A program, one of its areas, a page of that and a word of the page.
    fn some_place(&mut self) -> Option<(usize, usize, u64, u64)> {
        let who = self.random.below(self.programs.len() as u64) as usize;
        let areas = self.programs[who].1.len() as u64;
        if areas == 0 {
            return None;
        }
        let area = self.random.below(areas) as usize;
        let nth = self.random.below(self.programs[who].1[area].pages);
        Some((who, area, nth, self.random.below(WORDS)))
    }

    fn read(&mut self, cpu: &Vcpu) {
        let Some((who, area, nth, word)) = self.some_place() else { return };
        let (space, areas) = &self.programs[who];
        let area = &areas[area];
        let index = area.first + nth;
        let wanted = match area.copies.get(&index) {
            Some(copy) => Ok(copy[word as usize]),
            None if self.model.has(index) => Ok(self.model.page(index)[word as usize]),
            None => Err(AccessError::Fault(FaultError::PastEnd)),
        };
        let is_past = wanted.is_err();
        let found = cpu.program(space).read_u64(page(area.addr, nth).checked_add(word * 8).unwrap());
        // A large folio of shared memory is mapped past the end; nothing is written there.
        let is_mapped = self.maps_past_end && is_past && found == Ok(0);
        if !(is_mapped || self.fails && found.as_ref().is_err_and(is_failure)) {
            assert_eq!(found, wanted, "page {index} word {word}, shared: {}", area.shared);
        }
    }

    fn write(&mut self, cpu: &Vcpu) {
        let Some((who, area, nth, word)) = self.some_place() else { return };
        let value = self.new_value();
        let (space, areas) = &mut self.programs[who];
        let area = &mut areas[area];
        let index = area.first + nth;
        let is_past = (index * WORDS + word) * 8 >= self.model.size;
        if is_past && (self.maps_past_end || self.model.has(index)) {
            return;
        }
        let done = cpu.program(space).write_u64(page(area.addr, nth).checked_add(word * 8).unwrap(), value);
        match done {
            Err(error) if self.fails && is_failure(&error) => {}
            _ if area.copies.contains_key(&index) || self.model.has(index) => {
                assert_eq!(done, Ok(()), "page {index}");
                if area.shared {
                    self.model.words[(index * WORDS + word) as usize] = value;
                } else {
                    let copy = area.copies.entry(index).or_insert_with(|| self.model.page(index));
                    copy[word as usize] = value;
                }
            }
            _ => assert_eq!(done, Err(AccessError::Fault(FaultError::PastEnd)), "page {index}"),
        }
    }

    fn call(&mut self) {
        let at = self.random.below(self.pages * WORDS) * 8;
        let most = if self.is_huge && self.random.chance(30) { self.pages } else { 2 };
        let words = 1 + self.random.below(most * WORDS);
        if self.random.chance(50) {
            let end = (at + words * 8).min(self.model.size).max(at);
            let mut bytes = vec![0; (words * 8) as usize];
            let done = self.file.read(at, &mut Buffer::new(&mut bytes));
            if done.stopped.is_some() {
                assert!(self.fails && done.stopped == Some(PageError::File(FileError::Io)), "{done:?}");
            } else {
                assert_eq!(done.bytes, end - at);
            }
            for (word, found) in bytes[..done.bytes as usize].chunks_exact(8).enumerate() {
                let wanted = self.model.words[at as usize / 8 + word];
                assert_eq!(u64::from_le_bytes(found.try_into().unwrap()), wanted, "word {word} from {at}");
            }
            return;
        }
        let words = words.min(self.pages * WORDS - at / 8);
        let values: Vec<u64> = (0..words).map(|_| self.new_value()).collect();
        let mut bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let done = self.file.write(at, &mut Buffer::new(&mut bytes));
        assert!(done.stopped.is_none() || self.fails, "{done:?}");
        assert_eq!(done.bytes % 8, 0);
        if done.bytes > 0 {
            self.model.size = self.model.size.max(at + done.bytes);
        }
        let at = at as usize / 8;
        self.model.words[at..at + done.bytes as usize / 8]
            .copy_from_slice(&values[..done.bytes as usize / 8]);
    }

    /// `store` has the bytes of a file that is not shared memory.
    fn cut(&mut self, store: Option<&FileStore>) {
        if self.random.chance(50) {
            let size = self.random.below(self.pages * WORDS + 1) * 8;
            self.file.set_size(size).unwrap();
            self.model.set_size(size);
            // What is stored past the end is the embedder's to cut.
            if let Some(store) = store {
                store.bytes.lock().unwrap().truncate(size as usize);
            }
            for area in self.programs.iter_mut().flat_map(|program| &mut program.1) {
                area.copies.retain(|&page, _| page < size.div_ceil(PAGE));
            }
            return;
        }
        let start = self.random.below(self.pages * WORDS);
        let most = if self.is_huge && self.random.chance(50) { self.pages } else { 4 };
        let end = start + self.random.below(most * WORDS);
        let free = |bytes| store.map_or(Ok(()), |store| store.free(bytes));
        if self.file.punch(start * 8..end * 8, free).is_ok() {
            let last = (end * 8).min(self.model.size) / 8;
            if start < last {
                self.model.words[start as usize..last as usize].fill(0);
            }
        } else {
            assert!(self.fails);
        }
    }

    fn change_mappings(&mut self) {
        let who = self.random.below(self.programs.len() as u64) as usize;
        let (space, areas) = &mut self.programs[who];
        match self.random.below(10) {
            0..=3 if areas.len() < 6 => {
                let first = self.random.below(self.pages);
                let pages = 1 + self.random.below(self.pages - first);
                let shared = self.random.chance(50);
                let flags = if shared { MapFlags::SHARED } else { MapFlags::empty() };
                let request = file_request(first, pages, RW, flags);
                // With the borders of large folios at those of tables.
                let place = VirtAddr((1 + self.mapped % 60_000) * GIB + first * PAGE);
                let is_aligned = self.is_huge && self.random.chance(70);
                let request = if is_aligned { request.at(place, MapFlags::FIXED | flags) } else { request };
                self.mapped += 1;
                let addr = space.mmap_file(&request, &self.file).unwrap();
                if self.is_huge && self.random.chance(30) {
                    space.madvise(addr, pages * PAGE, Advice::HugePage).unwrap();
                }
                areas.push(Area { addr, first, pages, shared, copies: BTreeMap::new() });
            }
            4..=5 if !areas.is_empty() => {
                let area = areas.swap_remove(self.random.below(areas.len() as u64) as usize);
                space.munmap(area.addr, area.pages * PAGE).unwrap();
            }
            6 if !areas.is_empty() => {
                let which = self.random.below(areas.len() as u64) as usize;
                let area = &mut areas[which];
                let len = area.pages * PAGE;
                let part = self.random.below(area.pages) * PAGE;
                let protection = if self.random.chance(50) { READ } else { Protection::empty() };
                space.mprotect(VirtAddr(area.addr.0 + part), len - part, protection, false).unwrap();
                // A transfer may fail: the pages stay dirty, or the error is that of an opening.
                let _ = space.msync(area.addr, len, SyncFlags::SYNC);
                space.mprotect(area.addr, len, RW, false).unwrap();
                let moved = space.mremap(area.addr, len, len + PAGE, RemapFlags::MAYMOVE, VirtAddr(0));
                // Grown by a page, which is cut off again.
                let moved = moved.unwrap();
                space.munmap(page(moved, area.pages), PAGE).unwrap();
                area.addr = moved;
            }
            7 if !areas.is_empty() => {
                let which = self.random.below(areas.len() as u64) as usize;
                let area = &mut areas[which];
                let first = self.random.below(area.pages);
                let pages = 1 + self.random.below(area.pages - first);
                space.madvise(page(area.addr, first), pages * PAGE, Advice::DontNeed).unwrap();
                let gone = area.first + first..area.first + first + pages;
                area.copies.retain(|page, _| !gone.contains(page));
            }
            8 if self.programs.len() < 4 => {
                let child = (self.programs[who].0.fork().unwrap(), self.programs[who].1.clone());
                self.programs.push(child);
            }
            9 if self.programs.len() > 1 => drop(self.programs.swap_remove(who)),
            _ => {}
        }
    }
}

/// The swap of a machine, which a test takes away and adds again.
struct Swap<'m> {
    machine: &'m Machine,
    medium: Arc<Mutex<Medium>>,
    device: DeviceId,
    /// Whether a device before this one was used.
    was_used: bool,
}

impl<'m> Swap<'m> {
    fn on(machine: &'m Machine) -> Self {
        let (disk, medium) = Disk::new(4096);
        Self { machine, medium, device: swap_on(machine, disk), was_used: false }
    }

    /// Whether pages went out and came back.
    fn is_used(&self) -> bool {
        let medium = lock(&self.medium);
        self.was_used || medium.reads > 0 && !medium.stored().is_empty()
    }

    /// Pages out, or in, or what a device fails to read.
    fn change(&mut self, scene: &mut Scene<'_>) {
        let (who, areas) = {
            let who = scene.random.below(scene.programs.len() as u64) as usize;
            (who, &scene.programs[who].1)
        };
        let kind = scene.random.below(10);
        let area = (!areas.is_empty()).then(|| {
            let area = &areas[scene.random.below(areas.len() as u64) as usize];
            let first = scene.random.below(area.pages);
            (page(area.addr, first), (1 + scene.random.below(area.pages - first)) * PAGE)
        });
        match (kind, area) {
            (0..=2, _) => reclaim(self.machine, 1, 1 + scene.random.below(60)),
            (3, Some((addr, len))) => scene.programs[who].0.madvise(addr, len, Advice::PageOut).unwrap(),
            (4, Some((addr, len))) => scene.programs[who].0.madvise(addr, len, Advice::WillNeed).unwrap(),
            (5, Some((addr, len))) => scene.programs[who].0.madvise(addr, len, Advice::Cold).unwrap(),
            (8 | 9, Some((addr, len))) => {
                if scene.random.chance(30) {
                    _ = self.machine.memory().khugepaged_step();
                }
                let blocks: Vec<_> = areas.iter().flat_map(Area::blocks).collect();
                let nth = scene.random.below(1 + blocks.len() as u64) as usize;
                let (addr, len) = blocks.get(nth).map_or((addr, len), |&block| (block, MIB2));
                let collapsed = scene.programs[who].0.madvise(addr, len, Advice::Collapse);
                let expected = [Errno::EINVAL, Errno::EAGAIN, Errno::ENOMEM];
                assert!(
                    collapsed.is_ok() || expected.contains(&collapsed.unwrap_err().errno()),
                    "{collapsed:?}"
                );
            }
            (6, _) if !scene.fails && scene.random.chance(10) => {
                let was_used = self.is_used();
                self.machine.memory().swapoff(self.device, || true).unwrap();
                *self = Self { was_used, ..Self::on(self.machine) };
            }
            (7, _) => {
                scene.fails = scene.random.chance(30);
                lock(&self.medium).unreadable = scene.fails;
                lock(&self.medium).unwritable = scene.random.chance(30);
            }
            _ => {}
        }
    }
}

/// Random operations on shared memory that is paged out: as below.
#[test]
fn each_word_of_shared_memory_is_the_one_that_was_written_last() {
    for seed in 0..setting("QUIRE_SEEDS", 4) {
        shared_memory_is_what_was_written((1000 + seed, setting("QUIRE_OPS", 30_000)), PAGES[0], &[]);
    }
}

/// The same in large folios: of all orders, of the PMD's, within the size only, and as they were advised.
#[test]
fn each_word_of_shared_memory_in_large_folios_is_the_one_that_was_written_last() {
    let sizes = ["16kB", "32kB", "64kB", "256kB"].map(|size| format!("hugepages-{size}/shmem_enabled"));
    for seed in 0..setting("QUIRE_SEEDS", 4) {
        let common = ("shmem_enabled", ["always", "force", "within_size", "advise"][seed as usize % 4]);
        let of_size = |word| sizes.iter().map(move |file| (file.as_str(), word));
        let settings: Vec<_> = match seed % 4 {
            1 => vec![common],
            2 => of_size("within_size").chain([common]).collect(),
            _ => of_size("always").chain([common]).collect(),
        };
        let operations = setting("QUIRE_OPS", 30_000) / 5;
        shared_memory_is_what_was_written((2000 + seed, operations), PAGES[1], &settings);
    }
}

fn shared_memory_is_what_was_written((seed, operations): (u64, u64), pages: u64, huge: &[(&str, &str)]) {
    let machine = machine(64, 1);
    for (file, word) in huge {
        HugeFile::find(file).unwrap().write(machine.memory(), word).unwrap();
    }
    let file = machine.memory().create_shmem((), 0).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let is_huge = !huge.is_empty();
    let mut scene = Scene { maps_past_end: is_huge, ..Scene::new((file, space), seed, (pages, is_huge)) };
    let mut swap = Swap::on(&machine);
    for nth in 0..operations {
        match scene.random.below(100) {
            0..=29 => scene.read(&cpu),
            30..=59 => scene.write(&cpu),
            60..=69 => scene.call(),
            // What cannot be read where a file is cut is lost.
            70..=73 if !scene.fails => scene.cut(None),
            74..=82 if !scene.fails => scene.change_mappings(),
            _ => swap.change(&mut scene),
        }
        if nth % 500 == 0 {
            assert_audit(&machine);
        }
    }
    assert!(swap.is_used(), "seed {seed}: nothing was paged out");
    lock(&swap.medium).unreadable = false;
    if is_huge {
        let counted = |counter| {
            Order::ALL.iter().map(|&order| machine.memory().frames().events().folios(order, counter)).sum()
        };
        let [made, out, back, cut]: [u64; 4] =
            [FolioCounter::ShmemAlloc, FolioCounter::Swpout, FolioCounter::Swpin, FolioCounter::Split]
                .map(counted);
        assert!(made > 0 && out > 0 && back > 0 && cut > 0, "seed {seed}: {made} {out} {back} {cut}");
        // Where only one size is made hardly anything is left to collapse.
        let collapsed = machine.memory().spaces().thp().collapsed();
        assert!(collapsed > 0 || huge.len() == 1, "seed {seed}: no block was collapsed");
    }
    drop(scene);
    assert_eq!(free_slots(&machine), 4096, "seed {seed}");
}

/// Random operations: each word of the file and of each private copy is the one that was written last.
#[test]
fn each_word_is_the_one_that_was_written_last() {
    for seed in 0..setting("QUIRE_SEEDS", 4) {
        let is_huge = seed % 4 >= 2;
        let operations = setting("QUIRE_OPS", 30_000) / if is_huge { 10 } else { 1 };
        let (machine, pages) = (machine(64, 1), PAGES[usize::from(is_huge)]);
        let (backing, store) =
            if is_huge { MemoryFile::huge(Vec::new()) } else { MemoryFile::new(Vec::new()) };
        let file = machine.memory().create_file(backing, 0).unwrap();
        let (cpu, space) = cpu_and_space(&machine);
        let mut scene = Scene::new((file, space), seed, (pages, is_huge));
        for nth in 0..operations {
            match scene.random.below(100) {
                0..=34 => scene.read(&cpu),
                35..=69 => scene.write(&cpu),
                70..=79 => scene.call(),
                80..=83 => scene.cut(Some(&store)),
                84..=92 => scene.change_mappings(),
                93..=95 => {
                    let wrote = scene.file.sync(0..u64::MAX, false);
                    assert!(wrote.is_ok() || scene.fails || seed % 2 == 1, "{wrote:?}");
                    if wrote.is_ok() && seed % 2 == 0 {
                        let bytes = store.bytes.lock().unwrap();
                        for (word, wanted) in
                            scene.model.words[..scene.model.size as usize / 8].iter().enumerate()
                        {
                            let stored = bytes.get(word * 8..word * 8 + 8);
                            let stored =
                                stored.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
                            assert_eq!(stored, *wanted, "word {word} is not what a sync must have written");
                        }
                    }
                }
                96 => _ = scene.file.invalidate(0..u64::MAX),
                97 if seed % 2 == 1 => {
                    scene.fails = !scene.fails;
                    store.fails_reads.store(scene.fails, Ordering::Relaxed);
                }
                98 => _ = scene.file.write_back(0..u64::MAX, Wait::No),
                _ => {}
            }
            if nth % 500 == 0 {
                assert_audit(&machine);
            }
        }
        let Scene { file, programs, .. } = scene;
        drop((file, programs));
        assert_eq!(store.files.load(Ordering::Relaxed), 0);
    }
}
