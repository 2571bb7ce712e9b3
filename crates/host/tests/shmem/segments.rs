//! SysV shared memory. The results are those measured of Linux 6.18.

use crate::common::*;
use crate::mapped::resident;
use quire_mm::shm::{ShmCaller, ShmChange, ShmNamespace, ShmQuery, ShmStatus};

type Shm<'m> = ShmNamespace<'m, HostPlatform>;

const CREAT: u32 = 0o1000;
const EXCL: u32 = 0o2000;
const RDONLY: u32 = 0o10000;
const RND: u32 = 0o20000;
const REMAP: u32 = 0o40000;
const EXEC: u32 = 0o100_000;
const PRIVATE: i32 = 0;

/// A user without rights, at a time.
fn user(uid: u32, now: i64) -> ShmCaller<'static> {
    ShmCaller {
        uid,
        gid: uid,
        is_in_group: &|_| false,
        pid: 1000 + uid,
        now,
        passes_modes: false,
        is_admin: false,
        may_lock: false,
        lock_limit: 0,
    }
}

fn status(shm: &Shm<'_>, id: i32) -> Result<ShmStatus, Error> {
    shm.status(ShmQuery::Id(id), &ShmCaller { passes_modes: true, ..user(0, 0) })
}

fn attachments(shm: &Shm<'_>, id: i32) -> Option<u64> {
    status(shm, id).ok().map(|status| status.attachments)
}

fn flags_at(space: &HostSpace<'_>, addr: VirtAddr) -> VmFlags {
    let mut flags = VmFlags::empty();
    space.mappings().for_each_in(addr, page(addr, 1), |mapping| flags = mapping.flags);
    flags
}

const ANY: VirtAddr = VirtAddr(0);

#[test]
fn shmget_finds_makes_and_refuses_as_linux() {
    let machine = machine(16, 1);
    let shm = machine.memory().create_shm().unwrap();
    let (one, other) = (user(1, 10), user(2, 20));
    let get = |key, size, flags| shm.get(key, size, flags, &one).map_err(Error::errno);
    assert_eq!(get(PRIVATE, 0, 0o600), Err(Errno::EINVAL));
    assert_eq!(get(7, 0, CREAT | 0o600), Err(Errno::EINVAL));
    assert_eq!(get(7, u64::MAX, CREAT | 0o600), Err(Errno::EINVAL));
    assert_eq!(get(7, 1 << 48, CREAT | 0o600), Err(Errno::ENOMEM));
    assert_eq!(get(7, PAGE, 0o600), Err(Errno::ENOENT));
    let id = get(7, 3 * PAGE + 5, CREAT | EXCL | 0o600).unwrap();
    assert_eq!(get(7, PAGE, CREAT | EXCL | 0o600), Err(Errno::EEXIST));
    for (size, found) in [(0, Ok(id)), (3 * PAGE + 5, Ok(id)), (3 * PAGE + 6, Err(Errno::EINVAL))] {
        assert_eq!(get(7, size, EXCL), found);
    }
    assert_eq!(shm.get(7, 0, 0o400, &other), Err(Error::AccessDenied));
    assert_eq!(shm.get(7, 0, 0, &other), Ok(id));
    assert_eq!(shm.get(7, 0, 0o400, &ShmCaller { passes_modes: true, ..other }), Ok(id));
    // Huge pages, of which there is no pool.
    assert_eq!(get(8, PAGE, CREAT | 0o4600), Err(Errno::ENOMEM));
    assert_eq!(get(8, PAGE, CREAT | 0o4600 | 16 << 26), Err(Errno::EINVAL));
    let [first, second] = [PAGE, PAGE].map(|size| get(PRIVATE, size, 0o600).unwrap());
    assert_eq!((first, second), (id + 1, id + 2));
    let found = status(&shm, id).unwrap();
    assert_eq!((found.key, found.mode, found.size, found.changed_at), (7, 0o600, 3 * PAGE + 5, 10));
    assert_eq!((found.uid, found.creator_gid, found.creator_pid, found.last_pid), (1, 1, 1001, 0));
    let committed = machine.memory().file_totals().promised;
    assert_eq!(committed, 4 + 2);
    let _unpromised = get(PRIVATE, 100 * PAGE, 0o10600).unwrap();
    assert_eq!(machine.memory().file_totals().promised, committed);
}

#[test]
fn numbers_come_in_turn_and_name_one_segment_only() {
    let machine = machine(64, 1);
    let shm = machine.memory().create_shm().unwrap();
    let me = user(1, 0);
    let mut seen = Vec::new();
    for round in 0..300 {
        let id = shm.get(PRIVATE, PAGE, 0o600, &me).unwrap();
        assert!(!seen.contains(&id), "{id} was used before");
        assert_eq!(id & 0x7fff, round % 64, "places are used in turn");
        seen.push(id);
        shm.change(id, ShmChange::Remove, &me).unwrap();
        assert_eq!(status(&shm, id), Err(Error::NoSegment));
    }
    for _ in 0..4096 {
        let _id = shm.get(PRIVATE, PAGE, 0o10600, &me).unwrap();
    }
    assert_eq!(shm.get(PRIVATE, PAGE, 0o600, &me), Err(Error::TooManySegments));
    assert_eq!(shm.totals().segments, 4096);
    drop(shm);
    assert_eq!(machine.memory().file_totals().promised, 0);
    assert_audit(&machine);
}

#[test]
fn processes_share_a_segment_until_its_last_attachment_goes() {
    let machine = machine(16, 2);
    let (cpu, space) = cpu_and_space(&machine);
    let other = create_space(&machine);
    let shm = machine.memory().create_shm().unwrap();
    let me = user(1, 100);
    let id = shm.get(5, 3 * PAGE + 5, CREAT | 0o600, &me).unwrap();
    let here = shm.attach(&space, id, ANY, 0, &user(1, 101)).unwrap();
    let there = shm.attach(&other, id, ANY, 0, &me).unwrap();
    write(&cpu, &space, page(here, 3), 42);
    assert_eq!(read(&cpu, &other, page(there, 3)), 42);
    assert_eq!(attachments(&shm, id), Some(2));
    let mut number = None;
    space.mappings().for_each(|mapping| number = mapping.file);
    assert_eq!(number, Some(status(&shm, id).unwrap().file));
    shm.change(id, ShmChange::Remove, &me).unwrap();
    let removed = status(&shm, id).unwrap();
    assert_eq!((removed.key, removed.mode), (0, 0o1600));
    assert_eq!(shm.get(5, 0, 0, &me), Err(Error::NoKey));
    let new = shm.get(5, PAGE, CREAT | 0o600, &me).unwrap();
    assert_ne!(new, id);
    shm.change(id, ShmChange::Remove, &me).unwrap();
    shm.detach(&space, here, &me).unwrap();
    let again = shm.attach(&space, id, ANY, RDONLY, &me).unwrap();
    assert_eq!(read(&cpu, &space, page(again, 3)), 42, "it can be attached while it is attached");
    shm.detach(&other, there, &me).unwrap();
    assert_eq!(machine.memory().file_totals().shmem, 1);
    space.munmap(again, 4 * PAGE).unwrap();
    assert_eq!(machine.memory().file_totals().shmem, 0, "its memory goes with the last attachment");
    assert_eq!(status(&shm, id), Err(Error::NoSegment));
    assert_eq!(shm.attach(&space, id, ANY, 0, &me), Err(Error::NoSegment));
    assert_eq!(shm.change(id, ShmChange::Remove, &me), Err(Error::NoSegment));
    assert_audit(&machine);
}

#[test]
fn the_memory_of_a_name_space_goes_with_it_and_what_is_attached_stays() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let shm = machine.memory().create_shm().unwrap();
    let me = user(1, 0);
    let id = shm.get(PRIVATE, 2 * PAGE, 0o600, &me).unwrap();
    let _loose = shm.get(PRIVATE, 2 * PAGE, 0o600, &me).unwrap();
    let at = shm.attach(&space, id, ANY, 0, &me).unwrap();
    write(&cpu, &space, at, 3);
    drop(shm);
    assert_eq!((read(&cpu, &space, at), machine.memory().file_totals().promised), (3, 2));
    space.munmap(at, 2 * PAGE).unwrap();
    assert_eq!(machine.memory().file_totals().promised, 0);
    assert_audit(&machine);
}

#[test]
fn shmat_chooses_and_refuses_addresses_as_linux() {
    let machine = machine(16, 1);
    let (_cpu, space) = cpu_and_space(&machine);
    let shm = machine.memory().create_shm().unwrap();
    let me = user(1, 0);
    let id = shm.get(PRIVATE, 3 * PAGE, 0o700, &me).unwrap();
    let attach = |addr: u64, flags| shm.attach(&space, id, VirtAddr(addr), flags, &me);
    let errno = |addr: u64, flags| attach(addr, flags).map_err(Error::errno);
    let base = attach(0, 0).unwrap().0 - 64 * PAGE;
    assert_eq!(errno(0, REMAP), Err(Errno::EINVAL));
    assert_eq!(errno(base + 5, 0), Err(Errno::EINVAL));
    assert_eq!(errno(5, RND | REMAP), Err(Errno::EINVAL));
    assert_eq!(attach(base + 5, RND), Ok(VirtAddr(base)));
    assert_eq!(errno(base - 2 * PAGE, 0), Err(Errno::EINVAL), "it reaches into another one");
    let (limits, few) = (space.limits(), Limits { mappings: 1, ..space.limits() });
    space.set_limits(few);
    assert_eq!(errno(base - 2 * PAGE, 0), Err(Errno::EINVAL), "before the limit is looked at");
    assert_eq!(errno(base - 8 * PAGE, 0), Err(Errno::ENOMEM));
    space.set_limits(limits);
    assert_eq!(attach(base - 2 * PAGE, REMAP), Ok(VirtAddr(base - 2 * PAGE)));
    assert_eq!(errno(1_u64.wrapping_neg() & !(PAGE - 1), 0), Err(Errno::EINVAL));
    assert_eq!(errno(1 << 47, 0), Err(Errno::ENOMEM));
    assert_eq!(shm.attach(&space, id + 1, ANY, 0, &me), Err(Error::NoSegment));
    assert_eq!(shm.attach(&space, -1, ANY, 0, &me), Err(Error::NoSegment));
    assert_eq!(attachments(&shm, id), Some(3), "a failure counts no more");
    let only_read = attach(0, RDONLY).unwrap();
    let flags = flags_at(&space, only_read);
    assert!(flags.contains(VmFlags::MAYSHARE) && !flags.intersects(VmFlags::SHARED | VmFlags::MAYWRITE));
    assert_eq!(space.mprotect(only_read, PAGE, RW, false), Err(Error::AccessDenied));
    assert!(flags_at(&space, attach(0, EXEC | RDONLY).unwrap()).contains(VmFlags::EXEC));
    // Each use asks for its permission.
    let id = shm.get(PRIVATE, PAGE, 0o400, &me).unwrap();
    let results = [0, RDONLY, EXEC | RDONLY].map(|flags| shm.attach(&space, id, ANY, flags, &me).is_ok());
    assert_eq!(results, [false, true, false]);
    assert_eq!(shm.attach(&space, id, ANY, 0, &user(2, 0)), Err(Error::AccessDenied));
    let group = ShmCaller { is_in_group: &|gid| gid == 1, ..user(2, 0) };
    assert_eq!(shm.attach(&space, id, ANY, RDONLY, &group), Err(Error::AccessDenied));
    shm.change(id, ShmChange::Owner { uid: 1, gid: 1, mode: 0o7440 }, &me).unwrap();
    let _at = shm.attach(&space, id, ANY, RDONLY, &group).unwrap();
    assert_audit(&machine);
}

#[test]
fn attachments_are_counted_as_mappings() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let shm = machine.memory().create_shm().unwrap();
    let me = user(1, 0);
    let id = shm.get(PRIVATE, 8 * PAGE, 0o600, &me).unwrap();
    let at = shm.attach(&space, id, ANY, 0, &me).unwrap();
    let count = || attachments(&shm, id);
    space.mprotect(page(at, 1), PAGE, READ, false).unwrap();
    assert_eq!(count(), Some(3));
    space.mprotect(page(at, 1), PAGE, RW, false).unwrap();
    assert_eq!(count(), Some(3), "none goes in a merge");
    space.munmap(at, PAGE).unwrap();
    space.munmap(page(at, 7), PAGE).unwrap();
    assert_eq!(count(), Some(2));
    space.munmap(page(at, 3), PAGE).unwrap();
    assert_eq!(count(), Some(3));
    let alias = space.mremap(page(at, 1), 0, PAGE, RemapFlags::MAYMOVE, None).unwrap();
    assert_eq!(count(), Some(4));
    write(&cpu, &space, alias, 6);
    let child = space.fork().unwrap();
    assert_eq!(count(), Some(8));
    shm.settle(&user(9, 50));
    drop(child);
    shm.settle(&user(7, 77));
    let found = status(&shm, id).unwrap();
    assert_eq!((found.attachments, found.detached_at, found.last_pid), (4, 77, 1007));
    shm.settle(&user(8, 88));
    assert_eq!(status(&shm, id).unwrap(), found, "nothing was detached since");
    // The start of what is left is where it was attached, not where it begins now.
    assert_eq!(shm.detach(&space, page(at, 1), &me), Err(Error::NotAttached));
    assert_eq!(shm.detach(&space, VirtAddr(at.0 + 1), &me), Err(Error::Unaligned));
    shm.detach(&space, at, &user(3, 99)).unwrap();
    let found = status(&shm, id).unwrap();
    assert_eq!((found.attachments, found.detached_at, found.last_pid), (1, 99, 1003));
    assert_eq!(read(&cpu, &space, alias), 6);
    assert_eq!(shm.detach(&space, at, &me), Err(Error::NotAttached));
    assert_audit(&machine);
}

/// As Linux 6.18, whose mappings of segments have no faults around a page, an end of their own, and a file
/// that says where they go.
#[test]
fn a_mapping_of_a_segment_faults_page_by_page_goes_in_no_merge_and_is_moved_alone() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let shm = machine.memory().create_shm().unwrap();
    let me = user(1, 0);
    let id = shm.get(PRIVATE, 8 * PAGE, 0o600, &me).unwrap();
    let (at, other) = (VirtAddr(1 << 32), VirtAddr(1 << 33));
    for attached in [at, other] {
        assert_eq!(shm.attach(&space, id, attached, 0, &me), Ok(attached));
    }
    (0..8).for_each(|number| write(&cpu, &space, page(at, number), number));
    assert_eq!(read(&cpu, &space, page(other, 3)), 3);
    assert_eq!(resident(&space), [0, 0, 9]);
    // The whole of one that is like its neighbours stays; a part of it joins one of them.
    space.mprotect(page(at, 2), 4 * PAGE, READ, false).unwrap();
    space.mprotect(page(at, 2), PAGE, RW, false).unwrap();
    assert_eq!(attachments(&shm, id), Some(4), "the part joins the mapping below");
    space.mprotect(page(at, 3), 3 * PAGE, RW, false).unwrap();
    assert_eq!(attachments(&shm, id), Some(4));
    let mut parts = Vec::new();
    space.mappings().for_each_in(at, page(at, 8), |mapping| parts.push(mapping.range.pages()));
    assert_eq!(parts, [3, 3, 2]);
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    let moved = |from, pages| space.mremap(from, pages * PAGE, pages * PAGE, flags, Some(VirtAddr(1 << 34)));
    assert_eq!(moved(at, 8), Err(Error::BadAddress));
    assert_eq!(moved(page(at, 3), 3), Ok(VirtAddr(1 << 34)));
    assert_eq!(shm.get(PRIVATE, 1 << 63, 0o600, &me), Err(Error::SegmentSize));
    assert_audit(&machine);
}

#[test]
fn shmdt_leaves_what_is_not_of_the_attachment() {
    let machine = machine(16, 1);
    let (_cpu, space) = cpu_and_space(&machine);
    let shm = machine.memory().create_shm().unwrap();
    let me = user(1, 0);
    let id = shm.get(PRIVATE, 4 * PAGE, 0o600, &me).unwrap();
    let base = shm.attach(&space, id, ANY, 0, &me).unwrap();
    shm.detach(&space, base, &me).unwrap();
    let base = VirtAddr(base.0 - 64 * PAGE);
    let [first, second] = [base, page(base, 4)].map(|addr| shm.attach(&space, id, addr, 0, &me).unwrap());
    assert_eq!(attachments(&shm, id), Some(2), "two attachments never become one mapping");
    let hole = MapRequest::anonymous(PAGE, RW).at(page(first, 1), MapFlags::FIXED);
    let foreign = space.mmap(&hole).unwrap();
    let moved = page(base, 12);
    let _at = space.mremap(page(first, 3), PAGE, PAGE, MOVE, moved).unwrap();
    shm.detach(&space, first, &me).unwrap();
    let mut left = Vec::new();
    space.mappings().for_each_in(base, page(base, 13), |mapping| left.push(mapping.range.start()));
    assert_eq!(left, [foreign, second, moved]);
    assert_eq!(shm.detach(&space, moved, &me), Err(Error::NotAttached));
    shm.detach(&space, page(base, 9), &me).unwrap();
    shm.detach(&space, second, &me).unwrap();
    assert_eq!(attachments(&shm, id), Some(0));
    assert_audit(&machine);
}

#[test]
fn owners_change_and_remove_and_others_may_not() {
    let machine = machine(16, 1);
    let shm = machine.memory().create_shm().unwrap();
    let (me, other) = (user(1, 1), user(2, 2));
    let id = shm.get(PRIVATE, PAGE, 0o600, &me).unwrap();
    assert_eq!(shm.status(ShmQuery::Id(id), &other), Err(Error::AccessDenied));
    let owner = |uid, mode| ShmChange::Owner { uid, gid: 3, mode };
    for change in [owner(2, 0o777), ShmChange::Remove, ShmChange::Lock, ShmChange::Unlock] {
        assert_eq!(shm.change(id, change, &other), Err(Error::NotPermitted));
    }
    assert_eq!(shm.change(id, owner(u32::MAX, 0), &me), Err(Error::BadArgument));
    shm.change(id, owner(2, 0o1640), &user(1, 9)).unwrap();
    let found = shm.status(ShmQuery::Place(id as u32), &other).unwrap();
    assert_eq!((found.id, found.uid, found.gid, found.mode, found.changed_at), (id, 2, 3, 0o640, 9));
    assert_eq!(shm.status(ShmQuery::Place(id as u32), &user(4, 0)), Err(Error::AccessDenied));
    assert_eq!(shm.status(ShmQuery::PlaceOfAny(id as u32), &user(4, 0)), Ok(found));
    assert_eq!(shm.status(ShmQuery::Place(9), &me), Err(Error::NoSegment));
    assert_eq!(shm.change(id, ShmChange::Lock, &other), Err(Error::NotPermitted), "no memory may be locked");
    let may = ShmCaller { lock_limit: PAGE, ..other };
    shm.change(id, ShmChange::Lock, &may).unwrap();
    assert_eq!(status(&shm, id).unwrap().mode, 0o2640);
    shm.change(id, ShmChange::Unlock, &may).unwrap();
    // Its creator is as good as its owner, and an administrator.
    shm.change(id, owner(5, 0o600), &me).unwrap();
    shm.change(id, ShmChange::Remove, &ShmCaller { is_admin: true, ..user(8, 0) }).unwrap();
    assert_eq!(shm.totals().segments, 0);
}

#[test]
fn what_is_locked_is_not_paged_out() {
    let machine = swapping(32, 1, 256);
    let (cpu, space) = cpu_and_space(&machine);
    let shm = machine.memory().create_shm().unwrap();
    let me = ShmCaller { may_lock: true, ..user(1, 0) };
    let id = shm.get(PRIVATE, 32 * PAGE, 0o600, &me).unwrap();
    let at = shm.attach(&space, id, ANY, 0, &me).unwrap();
    fill(&cpu, &space, at, 0..32, 1);
    shm.change(id, ShmChange::Lock, &me).unwrap();
    space.madvise(at, 32 * PAGE, Advice::PageOut).unwrap();
    reclaim(&machine, 4, 32);
    assert_eq!(resident(&space)[2], 32);
    let totals = shm.totals();
    assert_eq!((totals.segments, totals.pages, totals.resident, totals.swapped), (1, 32, 32, 0));
    shm.change(id, ShmChange::Unlock, &me).unwrap();
    reclaim(&machine, 4, 32);
    let totals = shm.totals();
    assert_eq!((totals.resident, totals.swapped), (0, 32));
    shm.detach(&space, at, &me).unwrap();
    shm.change(id, ShmChange::Remove, &me).unwrap();
    assert_eq!(machine.memory().file_totals().promised, 0);
    assert_audit(&machine);
}

/// Pages that come while it is locked are unevictable at once, those from before when reclaim meets them.
#[test]
fn pages_of_a_locked_segment_are_listed_as_on_linux() {
    let machine = swapping(32, 1, 256);
    let (cpu, space) = cpu_and_space(&machine);
    let shm = machine.memory().create_shm().unwrap();
    let me = ShmCaller { may_lock: true, ..user(1, 0) };
    let id = shm.get(PRIVATE, 64 * PAGE, 0o600, &me).unwrap();
    let at = shm.attach(&space, id, ANY, 0, &me).unwrap();
    let events = [
        VmEvent::UnevictablePgsCulled,
        VmEvent::UnevictablePgsScanned,
        VmEvent::UnevictablePgsRescued,
        VmEvent::UnevictablePgsMlocked,
        VmEvent::UnevictablePgsMunlocked,
        VmEvent::Pgactivate,
    ];
    let counts = || {
        machine.memory().memcgs().folios().take_in(None);
        let sizes = machine.memory().memcgs().folios().subtree_sizes(MemcgId::ROOT);
        let counts = events.map(|event| machine.memory().frames().events().sum(event));
        (sizes[LruList::Unevictable as usize], counts)
    };
    fill(&cpu, &space, at, 0..32, 1);
    shm.change(id, ShmChange::Lock, &me).unwrap();
    assert_eq!(counts(), (0, [0; 6]));
    fill(&cpu, &space, at, 32..48, 1);
    assert_eq!(counts(), (16, [16, 0, 0, 0, 0, 0]));
    // Twice: what is unevictable is left where it is.
    for _ in 0..2 {
        space.madvise(at, 8 * PAGE, Advice::PageOut).unwrap();
        assert_eq!(counts(), (24, [24, 0, 0, 0, 0, 8]));
    }
    space.mlock(page(at, 6), 4 * PAGE, false).unwrap();
    assert_eq!(counts(), (26, [26, 0, 0, 4, 0, 8]));
    space.munlock(page(at, 6), 4 * PAGE).unwrap();
    assert_eq!(counts(), (26, [26, 0, 0, 4, 4, 8]));
    assert_audit(&machine);
    shm.change(id, ShmChange::Unlock, &me).unwrap();
    assert_eq!(counts(), (0, [26, 48, 26, 4, 4, 8]));
    shm.change(id, ShmChange::Unlock, &me).unwrap();
    assert_eq!(counts(), (0, [26, 48, 26, 4, 4, 8]));
    // What a mapping locks stays.
    space.mlock(at, 2 * PAGE, false).unwrap();
    shm.change(id, ShmChange::Lock, &me).unwrap();
    shm.change(id, ShmChange::Unlock, &me).unwrap();
    assert_eq!(counts(), (2, [28, 96, 26, 6, 4, 8]));
    space.munlock(at, 2 * PAGE).unwrap();
    assert_eq!(counts(), (0, [28, 96, 28, 6, 6, 8]));
    // What comes from a device.
    reclaim(&machine, 4, 64);
    assert_eq!(shm.totals().swapped, 48);
    shm.change(id, ShmChange::Lock, &me).unwrap();
    let before = counts().0;
    assert_filled(&cpu, &space, at, 0..48, 1);
    assert_eq!((before, counts().0), (0, 48));
    assert_audit(&machine);
    shm.detach(&space, at, &me).unwrap();
    shm.change(id, ShmChange::Remove, &me).unwrap();
    assert_audit(&machine);
}

/// Two threads make, attach, remove and detach segments of few keys.
#[test]
fn segments_that_come_and_go_beside_each_other_leave_nothing() {
    let machine = machine(16, 2);
    let shm = machine.memory().create_shm().unwrap();
    on_cpus(&machine, 2, |number, cpu| {
        let space = create_space(&machine);
        let me = user(1, 0);
        let mut random = number as u64;
        let mut attached = Vec::new();
        for _ in 0..3000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (key, what) = ((random >> 40 & 3) as i32 + 1, random >> 60);
            let Ok(id) = shm.get(key, 2 * PAGE, CREAT | 0o600, &me) else { continue };
            match what {
                0..4 => match shm.change(id, ShmChange::Remove, &me) {
                    Ok(()) | Err(Error::NoSegment) => {}
                    Err(error) => panic!("{error}"),
                },
                4..10 if attached.len() < 16 => match shm.attach(&space, id, ANY, 0, &me) {
                    Ok(at) => {
                        write(cpu, &space, at, random);
                        attached.push(at);
                    }
                    Err(error) => assert_eq!(error, Error::NoSegment),
                },
                _ => {
                    if let Some(at) = attached.pop() {
                        shm.detach(&space, at, &me).unwrap();
                    }
                }
            }
        }
    });
    drop(shm);
    let totals = machine.memory().file_totals();
    assert_eq!((totals.shmem, totals.promised), (0, 0));
    assert_audit(&machine);
}
