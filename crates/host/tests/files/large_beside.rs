//! Large folios of files beside other calls.

use crate::common::*;
use crate::large::{HUGE, huge_file, map};
use crate::mapped::numbered;

fn map_huge(space: &HostSpace<'_>, file: &File<'_, HostPlatform>, pages: u64, flags: MapFlags) -> VirtAddr {
    map(space, file, (0, pages), (RW, flags))
}

/// The size is looked at when the folio is found, and when it is chosen what to map around the page.
#[test]
fn a_fault_for_reading_beside_truncations_maps_what_is_there() {
    let machine = machine(32, 3);
    let (backing, _) = MemoryFile::new(Vec::new());
    let file = machine.memory().create_file(backing, 0).unwrap();
    let (_cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 16, READ, MapFlags::SHARED), &file).unwrap();
    let bytes = numbered(16);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (1..3)
            .map(|number| {
                let (machine, space) = (&machine, &space);
                scope.spawn(move || {
                    let cpu = machine.vcpu(number).unwrap();
                    for _ in 0..500 {
                        let read = cpu.program(space).read_u64(page(addr, 8));
                        assert!(matches!(read, Ok(0 | 9) | Err(AccessError::Fault(FaultError::PastEnd))));
                        space.madvise(addr, 16 * PAGE, Advice::DontNeed).unwrap();
                    }
                })
            })
            .collect();
        while !readers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            write_file(&file, 0, &bytes);
            file.set_size(0).unwrap();
        }
    });
    assert_audit(&machine);
}

/// A PMD leaf of a file is taken out where it is to be split: the pin must not have the fault map it again.
#[test]
fn a_page_of_private_memory_that_a_pmd_entry_maps_is_pinned_for_reading() {
    let machine = machine(64, 1);
    let (file, _) = huge_file(&machine, 4 * HUGE);
    let (cpu, space) = cpu_and_space(&machine);
    let addr = map_huge(&space, &file, 4 * HUGE, MapFlags::empty());
    assert_eq!(read(&cpu, &space, page(addr, 1)), 2);
    assert_eq!(machine.memory().frames().events().file_pmd_mapped(), 1);
    let pinned = space.pin_page(page(addr, 10), Access::Read).unwrap();
    write(&cpu, &space, page(addr, 10), 3);
    drop(pinned);
    assert_audit(&machine);
}

/// Guards are installed where a PMD leaf of a file was.
#[test]
fn guards_take_the_place_of_a_part_of_a_pmd_entry() {
    for flags in [MapFlags::empty(), MapFlags::SHARED] {
        let machine = machine(64, 1);
        let (file, _) = huge_file(&machine, 4 * HUGE);
        let (cpu, space) = cpu_and_space(&machine);
        let addr = map_huge(&space, &file, 4 * HUGE, flags);
        assert_eq!(read(&cpu, &space, page(addr, 1)), 2);
        assert_eq!(machine.memory().frames().events().file_pmd_mapped(), 1);
        space.madvise(page(addr, 16), 16 * PAGE, Advice::GuardInstall).unwrap();
        let error = Err(AccessError::Fault(FaultError::NotMapped));
        assert_eq!(cpu.program(&space).read_u64(page(addr, 20)), error, "{flags:?}");
        assert_audit(&machine);
    }
}

/// A folio that was held when the file was cut in it, and is cut later where the file ends, leaves no folio
/// behind the end.
#[test]
fn a_hole_up_to_the_end_leaves_nothing_behind_it() {
    let machine = machine(64, 1);
    let (file, _) = huge_file(&machine, HUGE);
    let (cpu, space) = cpu_and_space(&machine);
    let addr = map_huge(&space, &file, HUGE, MapFlags::SHARED);
    write(&cpu, &space, page(addr, 300), 5);
    let pinned = space.pin_page(page(addr, 10), Access::Read).unwrap();
    file.set_size(301 * PAGE).unwrap();
    assert_eq!(file.figures().cached, HUGE);
    drop(pinned);
    file.punch(100 * PAGE..301 * PAGE, |_| Ok(())).unwrap();
    assert_eq!(file.figures().cached, 100, "nothing is cached past the end");
    assert_audit(&machine);
}

/// Memory of a program of which so many pages fit into RAM: those that were made accessible last.
struct Scarce {
    left: u64,
    resident: u64,
    most: u64,
    calls: u64,
    asked: u64,
}

impl UserCopy for Scarce {
    fn left(&self) -> u64 {
        self.left
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        self.calls += 1;
        self.asked += bytes as u64;
        assert!(self.calls < 100_000, "the call does not end");
        // From the position on to that.
        self.resident = bytes as u64;
        bytes
    }

    fn copy(&mut self, page: PageBytes<'_>) -> usize {
        if self.resident > self.most {
            // The first page was paged out for the last one.
            return 0;
        }
        page.len()
    }

    fn advance(&mut self, bytes: usize) {
        self.left -= bytes as u64;
    }
}

#[test]
fn a_call_whose_memory_does_not_fit_into_ram_goes_on() {
    for writes in [false, true] {
        let machine = machine(64, 1);
        let (backing, _) = MemoryFile::huge(numbered(HUGE));
        let file = machine.memory().create_file(backing, HUGE * PAGE).unwrap();
        let (_cpu, _space) = cpu_and_space(&machine);
        let mut memory = Scarce { left: HUGE * PAGE, resident: 0, most: 300 * PAGE, calls: 0, asked: 0 };
        let done = if writes { file.write(0, &mut memory) } else { file.read(0, &mut memory) };
        assert_eq!((done.bytes, done.stopped), (HUGE * PAGE, None));
    }
}

/// Of a file that may have large folios, but is cached in pages.
#[test]
fn a_call_makes_its_memory_accessible_about_once() {
    let machine = machine(64, 1);
    let (backing, _) = MemoryFile::huge(numbered(HUGE));
    let file = machine.memory().create_file(backing, HUGE * PAGE).unwrap();
    let (_cpu, _space) = cpu_and_space(&machine);
    for writes in [false, true] {
        let mut memory = Scarce { left: HUGE * PAGE, resident: 0, most: u64::MAX, calls: 0, asked: 0 };
        let done = if writes { file.write(0, &mut memory) } else { file.read(0, &mut memory) };
        assert_eq!((done.bytes, done.stopped), (HUGE * PAGE, None));
        let times = memory.asked / (HUGE * PAGE);
        assert!(times <= 2, "writes {writes}: all of it was asked for {times} times");
    }
}

/// What is behind the end is never written, so it must not be there.
#[test]
fn a_file_whose_held_folio_was_cut_at_its_end_can_be_replaced() {
    let machine = machine(64, 1);
    let (file, _) = huge_file(&machine, HUGE);
    let (cpu, space) = cpu_and_space(&machine);
    let addr = map_huge(&space, &file, HUGE, MapFlags::SHARED);
    write(&cpu, &space, page(addr, 300), 5);
    let pinned = space.pin_page(page(addr, 10), Access::Read).unwrap();
    file.set_size(301 * PAGE).unwrap();
    drop(pinned);
    file.punch(100 * PAGE..301 * PAGE, |_| Ok(())).unwrap();
    file.replace_from(200 * PAGE, 250 * PAGE, || Ok(())).unwrap();
    assert_audit(&machine);
}

/// What a device writes behind the end of a file does not come back when the file grows.
#[test]
fn bytes_behind_the_end_stay_lost() {
    for is_cut in [false, true] {
        let machine = machine(64, 1);
        let (file, _) = huge_file(&machine, HUGE);
        let (cpu, space) = cpu_and_space(&machine);
        let addr = map_huge(&space, &file, HUGE, MapFlags::SHARED);
        write(&cpu, &space, page(addr, 400), 5);
        let pinned = space.pin_page(page(addr, 400), Access::Write).unwrap();
        file.set_size(301 * PAGE).unwrap();
        let platform = machine.memory().frames().platform();
        // SAFETY: the page is pinned.
        unsafe { platform.direct_map(pinned.pfn()).as_ptr().cast::<u64>().write_volatile(77) };
        drop(pinned);
        if is_cut {
            file.punch(100 * PAGE..301 * PAGE, |_| Ok(())).unwrap();
        }
        file.set_size(HUGE * PAGE).unwrap();
        assert_eq!(read(&cpu, &space, page(addr, 400)), 0, "is cut: {is_cut}");
    }
}

/// The counters of anonymous folios do not change for those of a file.
#[test]
fn a_file_at_the_limit_of_a_memcg_counts_no_anonymous_folio() {
    let machine = machine(64, 1);
    let (cpu, _memcg, space) = in_memcg(&machine, "small", &[(Limit::Max, 300)]);
    let (backing, _) = MemoryFile::huge(numbered(4 * HUGE));
    let file = machine.memory().create_file(backing, 4 * HUGE * PAGE).unwrap();
    let addr = map_huge(&space, &file, 4 * HUGE, MapFlags::SHARED);
    space.madvise(addr, 4 * HUGE * PAGE, Advice::HugePage).unwrap();
    assert_eq!(read(&cpu, &space, page(addr, 7)), 8);
    for order in 2..=9 {
        assert_eq!(folios(&machine, order, FolioCounter::AnonFaultFallbackCharge), 0, "order {order}");
    }
    assert_eq!(count(&machine, VmEvent::ThpFaultFallbackCharge), 0);
}
