//! Mappings that a call may not divide, files that place themselves, and the limit on the number of mappings.
//! The expected values are Linux's.

use crate::common::*;

const BASE: u64 = GIB;
const READ_EXEC: VmFlags = VmFlags::READ.union(VmFlags::EXEC);
const RW_FLAGS: VmFlags = VmFlags::READ.union(VmFlags::WRITE);

/// What a ring of perf events has.
const RING: VmFlags =
    VmFlags::WHOLE.union(VmFlags::DONTEXPAND).union(VmFlags::DONTCOPY).union(VmFlags::DONTDUMP);

fn file(id: u64, vm_flags: VmFlags) -> MappedFile {
    MappedFile { vm_flags, ..MappedFile::new(id, 0) }
}

/// Maps `pages` pages of `file` at `addr`.
fn map_file(space: &HostSpace<'_>, addr: u64, pages: u64, file: MappedFile, flags: MapFlags) -> VirtAddr {
    let request = MapRequest::anonymous(pages * PAGE, RW).at(VirtAddr(addr), MapFlags::FIXED | flags);
    space.mmap(&MapRequest { file: Some(file), ..request }).unwrap()
}

fn ranges(space: &HostSpace<'_>) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    space.mappings().for_each(|mapping| all.push((mapping.range.start().0, mapping.range.end().0)));
    all
}

/// What `call` fails with.
fn errno<T>(call: Result<T, Error>) -> Option<Errno> {
    call.err().map(Error::errno)
}

/// A special mapping of the kernel, as the vdso is, and a ring of perf events.
#[test]
fn a_part_of_a_special_mapping_is_not_split_off() {
    let machine = machine(16, 1);
    let (_cpu, space) = cpu_and_space(&machine);
    let vdso = VirtRange::new(VirtAddr(BASE), page(VirtAddr(BASE), 3));
    let flags = READ_EXEC | VmFlags::MAY_ACCESS | VmFlags::DONTEXPAND | VmFlags::WHOLE;
    space.install(&Mapping { range: vdso, flags, page_offset: BASE / PAGE, file: None }).unwrap();
    let ring = map_file(&space, BASE + MIB2, 3, file(7, RING), MapFlags::SHARED);
    let before = ranges(&space);
    let free = VirtAddr(BASE + 2 * MIB2);
    for (start, first) in
        [(vdso.start(), 0), (vdso.start(), 1), (vdso.start(), 2), (ring, 0), (ring, 1), (ring, 2)]
    {
        let part = page(start, first);
        assert_eq!(errno(space.munmap(part, PAGE)), Some(Errno::EINVAL), "munmap {part:?}");
        let protected = space.mprotect(part, PAGE, Protection::empty(), false);
        assert_eq!(errno(protected), Some(Errno::EINVAL), "mprotect {part:?}");
        assert_eq!(errno(space.madvise(part, PAGE, Advice::Random)), Some(Errno::EINVAL), "madvise {part:?}");
        let moved = space.mremap(part, PAGE, PAGE, MOVE, free);
        assert_eq!(errno(moved), Some(Errno::EINVAL), "mremap {part:?}");
        let over = MapRequest::anonymous(PAGE, RW).at(part, MapFlags::FIXED);
        assert_eq!(errno(space.mmap(&over)), Some(Errno::EINVAL), "mmap {part:?}");
        // It has no effect on such a mapping, and so does not divide it.
        assert_eq!(space.mlock(part, PAGE, false), Ok(()));
    }
    for start in [vdso.start(), ring] {
        let shrunk = space.mremap(start, 3 * PAGE, PAGE, RemapFlags::empty(), VirtAddr(0));
        assert_eq!(errno(shrunk), Some(Errno::EINVAL));
        let shrunk = space.mremap(start, 3 * PAGE, PAGE, MOVE, free);
        assert_eq!(errno(shrunk), Some(Errno::EINVAL));
        let grown = space.mremap(start, 3 * PAGE, 4 * PAGE, RemapFlags::MAYMOVE, VirtAddr(0));
        assert_eq!(errno(grown), Some(Errno::EFAULT));
    }
    // For each split the number of mappings is looked at before its place.
    let limits = space.limits();
    for (most, expected) in [(2, Errno::ENOMEM), (3, Errno::EINVAL)] {
        space.set_limits(Limits { mappings: most, ..limits });
        let protected = space.mprotect(page(vdso.start(), 1), PAGE, Protection::empty(), false);
        assert_eq!(errno(protected), Some(expected), "{most} mappings");
    }
    space.set_limits(limits);
    assert_eq!(ranges(&space), before);
    assert_audit(&machine);

    // As a whole it can be advised, moved and unmapped. A child does not get the ring.
    assert_eq!(space.madvise(vdso.start(), 3 * PAGE, Advice::Random), Ok(()));
    let moved = space.mremap(vdso.start(), 3 * PAGE, 3 * PAGE, MOVE, free).unwrap();
    let child = space.fork().unwrap();
    assert_eq!(ranges(&child), [(moved.0, moved.0 + 3 * PAGE)]);
    assert_eq!(space.munmap(VirtAddr(BASE), GIB), Ok(()));
    assert_eq!(ranges(&space), []);
}

/// Hazard: a part of a mapping that may not be divided becomes a part of its neighbour, which has the same
/// flags.
#[test]
fn a_part_of_a_whole_mapping_does_not_merge_with_its_neighbour() {
    let machine = machine(16, 1);
    let (_cpu, space) = cpu_and_space(&machine);
    let whole = |addr: u64, flags: VmFlags| {
        let range = VirtRange::new(VirtAddr(addr), page(VirtAddr(addr), 2));
        let flags = VmFlags::READ | VmFlags::MAY_ACCESS | VmFlags::WHOLE | flags;
        space.install(&Mapping { range, flags, page_offset: addr / PAGE, file: None }).unwrap();
    };
    whole(BASE, VmFlags::RAND_READ);
    whole(BASE + 2 * PAGE, VmFlags::empty());
    let before = ranges(&space);
    let part = space.madvise(page(VirtAddr(BASE), 2), PAGE, Advice::Random);
    assert_eq!(errno(part), Some(Errno::EINVAL));
    assert_eq!(space.madvise(page(VirtAddr(BASE), 2), 2 * PAGE, Advice::Random), Ok(()));
    assert_eq!(ranges(&space), before, "as a whole neither does it");
}

/// The kernel's data page for the vdso is a mapping of page frames, and the vdso is not.
#[test]
fn mappings_of_page_frames_are_not_populated() {
    let machine = machine(16, 1);
    let (_cpu, space) = cpu_and_space(&machine);
    let map = |addr: u64, flags: VmFlags| {
        let range = VirtRange::new(VirtAddr(addr), page(VirtAddr(addr), 1));
        let flags = flags | VmFlags::MAY_ACCESS | VmFlags::DONTEXPAND | VmFlags::WHOLE;
        space.install(&Mapping { range, flags, page_offset: addr / PAGE, file: None }).unwrap();
        [Advice::PopulateRead, Advice::PopulateWrite]
            .map(|advice| errno(space.madvise(range.start(), PAGE, advice)))
    };
    let refused = [Some(Errno::EINVAL); 2];
    assert_eq!(map(BASE, VmFlags::READ | VmFlags::IO | VmFlags::PFNMAP), refused, "[vvar]");
    assert_eq!(map(BASE + 4 * PAGE, RW_FLAGS | VmFlags::IO), refused);
    assert_eq!(map(BASE + 8 * PAGE, RW_FLAGS | VmFlags::PFNMAP), refused);
    assert_eq!(map(BASE + 12 * PAGE, READ_EXEC), [None, refused[1]], "[vdso]");
}

/// A private mapping of `/dev/zero` is anonymous memory that has a file.
#[test]
fn private_zeros_are_anonymous_memory_with_a_file() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let zeros = file(3, VmFlags::ZEROS | VmFlags::PLACES_ITSELF);
    let addr = map_file(&space, BASE, 4, zeros, MapFlags::empty());
    let program = cpu.program(&space);
    for nth in 0..2 {
        program.write_u64(page(addr, nth), 1).unwrap();
    }
    // A read brings in the page of zeros, which costs nothing.
    assert_eq!(program.read_u64(page(addr, 2)), Ok(0));
    assert_eq!(space.figures().resident, 2 * PAGE);
    assert_eq!(space.madvise(addr, PAGE, Advice::Free), Ok(()));
    assert_eq!(errno(space.madvise(addr, PAGE, Advice::WipeOnFork)), Some(Errno::EINVAL));
    space.mappings().for_each(|mapping| assert_eq!(mapping.file, Some(3)));
    // Shared memory of zeros is its own, and there are as many as mappings.
    let shared = map_file(&space, BASE + MIB2, 2, zeros, MapFlags::SHARED);
    assert_eq!(errno(space.madvise(shared, PAGE, Advice::Free)), Some(Errno::EINVAL));
    let mut files = Vec::new();
    space.mappings().for_each(|mapping| files.push(mapping.file));
    assert_eq!(files, [Some(3), None]);
}

/// Its place is the file's choice, so `mremap` moves it only where it is the only mapping in the range.
#[test]
fn a_file_that_places_itself_moves_alone() {
    let machine = machine(16, 1);
    let (_cpu, space) = cpu_and_space(&machine);
    let (here, there) = (VirtAddr(BASE), VirtAddr(BASE + MIB2));
    for traits in [VmFlags::PLACES_ITSELF, VmFlags::PLACES_ITSELF | VmFlags::ZEROS] {
        for (first, refused, moved) in [(true, 2, 0), (false, 2, 1)] {
            let lay = |addr: VirtAddr, special: bool| {
                let traits = if special { traits } else { VmFlags::empty() };
                map_file(&space, addr.0, 1, file(u64::from(special), traits), MapFlags::empty());
            };
            lay(here, first);
            lay(page(here, 1), !first);
            let all = space.mremap(here, refused * PAGE, refused * PAGE, MOVE, there);
            assert_eq!(errno(all), Some(Errno::EFAULT), "{traits:?} {first}");
            // What came before it has moved.
            let there_now = ranges(&space).iter().filter(|range| range.0 >= there.0).count();
            assert_eq!(there_now, moved);
            let alone = page(here, u64::from(!first));
            assert_eq!(space.mremap(alone, PAGE, PAGE, MOVE, page(there, 5)), Ok(page(there, 5)));
            // A range that goes on behind it is refused even where nothing is.
            let alone = page(there, 5);
            assert_eq!(errno(space.mremap(alone, 2 * PAGE, 2 * PAGE, MOVE, here)), Some(Errno::EFAULT));
            space.munmap(here, GIB / 2).unwrap();
        }
    }
}

/// At the limit nothing may be mapped into the middle of a mapping: its rest would be two. At its ends it
/// may, once more than the limit.
#[test]
fn a_mapping_in_the_middle_of_another_needs_one_below_the_limit() {
    let machine = machine(16, 1);
    let (_cpu, space) = cpu_and_space(&machine);
    let whole = map_at(&space, BASE, 8 * PAGE, READ);
    let fixed = |nth: u64| {
        space.mmap(&MapRequest::anonymous(PAGE, RW).at(page(whole, nth), MapFlags::FIXED)).map(|_| ())
    };
    for (limit, nth, expected) in
        [(1, 3, Some(Errno::ENOMEM)), (1, 0, None), (2, 7, None), (3, 4, Some(Errno::ENOMEM))]
    {
        space.set_limits(Limits { mappings: limit, ..space.limits() });
        let before = ranges(&space);
        assert_eq!(errno(fixed(nth)), expected, "{nth} at {limit}");
        assert_eq!(expected.is_some(), ranges(&space) == before);
    }
    space.set_limits(Limits { mappings: 4, ..space.limits() });
    assert_eq!(errno(fixed(4)), None);
    assert_eq!(ranges(&space).len(), 5);
    assert_eq!(errno(fixed(4)), Some(Errno::ENOMEM), "there are more than the limit");
    // Linux looks at their number before it looks at the address.
    let unaligned = VirtAddr(page(whole, 4).0 + 0xa4f);
    let unaligned =
        || space.mmap(&MapRequest::anonymous(PAGE, RW).at(unaligned, MapFlags::FIXED)).map(|_| ());
    assert_eq!(errno(unaligned()), Some(Errno::ENOMEM));
    space.set_limits(Limits { mappings: 5, ..space.limits() });
    assert_eq!(errno(unaligned()), Some(Errno::EINVAL));
}

/// Linux takes these arguments as an `int`: what is beyond its bits is not looked at.
#[test]
fn bits_beyond_an_int_are_not_looked_at() {
    use quire_mm::abi::{CallNumber, CallOutcome, FaultIn, NoFiles, call};
    const BEYOND: u64 = 0xdead_beef << 32;
    let machine = machine(16, 1);
    let (_cpu, space) = cpu_and_space(&machine);
    let addr = map_at(&space, BASE, PAGE, RW).0;
    let (mlock2, msync, madvise, mlockall, pkey_mprotect, prctl, mremap) = (325, 26, 28, 151, 329, 157, 25);
    let made = |number, args| call(&space, CallNumber::from_raw(number), args, &NoFiles, &FaultIn(&space));
    for (number, args) in [
        (mlock2, [addr, PAGE, BEYOND, 0, 0, 0]),
        (mlock2, [addr, PAGE, BEYOND | 1, 0, 0, 0]),
        (msync, [addr, PAGE, BEYOND | 4, 0, 0, 0]),
        (madvise, [addr, PAGE, BEYOND | 16, 0, 0, 0]),
        (mlockall, [BEYOND | 6, 0, 0, 0, 0, 0]),
        (pkey_mprotect, [addr, PAGE, 3, BEYOND | 0xffff_ffff, 0, 0]),
        (prctl, [BEYOND | 66, 0, 0, 0, 0, 0]),
    ] {
        assert_eq!(made(number, args), CallOutcome::Done(0), "{number}: {args:x?}");
    }
    // Those of `mremap` are an `unsigned long`.
    let refused = made(mremap, [addr, PAGE, PAGE, BEYOND | 1, 0, 0]);
    assert_eq!(refused, CallOutcome::Failed(Errno::EINVAL));
    assert_eq!(made(mlock2, [addr, PAGE, BEYOND | 2, 0, 0, 0]), CallOutcome::Failed(Errno::EINVAL));
}

/// Hazard: pages that lie past the last offset have an index that the rmap does not find in their mapping.
#[test]
fn a_mapping_past_the_last_offset_is_not_installed() {
    let machine = machine(16, 1);
    let (_cpu, space) = cpu_and_space(&machine);
    let range = VirtRange::new(VirtAddr(BASE), page(VirtAddr(BASE), 8));
    let flags = RW_FLAGS | VmFlags::MAY_ACCESS;
    let install = |page_offset| space.install(&Mapping { range, flags, page_offset, file: None });
    assert_eq!(install(u64::MAX - 7), Err(Error::OffsetOverflow));
    assert_eq!(ranges(&space), []);
    assert_eq!(install(u64::MAX - 8), Ok(()));
}
