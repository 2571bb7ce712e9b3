//! A life in which each call of Quire runs on a painted stack.

use crate::machine::{Toy, access, drop_at_next_flush, drops_at_next_flush};
use crate::runtime::Output;
use crate::stack::{check_all, check_measure, shallow};
use core::sync::atomic::Ordering;
use quire_mm::platform::{Access, Order, PAGE_SIZE, Pfn, Platform, VirtAddr};
use quire_mm::space::{Advice, Limits, MapFlags, MapRequest, OomAction, Protection, RemapFlags, Space};
use quire_mm::swap::{SwapDevice, SwapOnOptions};
use quire_mm::{Memory, MemoryConfig, memcg::MemcgId, proc};

const RW: Protection = Protection::READ.union(Protection::WRITE);
/// More than there is RAM for.
const MANY: u64 = 5000;
const HUGE: u64 = 512;
/// Most of it.
const MOST: u64 = 2800;

fn at(base: VirtAddr, page: u64) -> VirtAddr {
    VirtAddr(base.0 + page * PAGE_SIZE)
}

fn write(space: &Space<'_, Toy>, base: VirtAddr, pages: u64) -> u64 {
    let store =
        |page| access(space, at(base, page), Access::Write, |word| word.store(page + 1, Ordering::Relaxed));
    (0..pages).take_while(|&page| store(page).is_ok()).count() as u64
}

/// Faults pages in, as for a debugger: the program of another space stays the current one.
fn fill(space: &Space<'_, Toy>, base: VirtAddr, pages: u64) -> bool {
    (0..pages).all(|page| space.fault(at(base, page), Access::Write).is_ok())
}

fn read(space: &Space<'_, Toy>, base: VirtAddr, pages: u64) {
    for page in 0..pages {
        let found = access(space, at(base, page), Access::Read, |word| word.load(Ordering::Relaxed));
        assert_eq!(found, Ok(page + 1));
    }
}

fn map(space: &Space<'_, Toy>, pages: u64) -> VirtAddr {
    let request = MapRequest::anonymous(pages * PAGE_SIZE, RW);
    let request = MapRequest { flags: request.flags | MapFlags::NORESERVE, ..request };
    shallow("mmap", || space.mmap(&request)).expect("mmap")
}

/// Leads the life, and checks how deep its calls were.
pub(crate) fn lead() {
    check_measure();
    let config = MemoryConfig { oom: OomAction::Kill, ..MemoryConfig::default() };
    let memory = shallow("Memory::new", || Memory::new(Toy, config)).expect("16 MiB are enough to start");
    {
        let space = shallow("create_space", || memory.create_space()).expect("a space");
        calls(&memory, &space);
        large_folios(&space);
        let disk = shallow("create_ram_disk", || memory.create_ram_disk(MANY)).expect("room");
        paging(&memory, &space, "RAM disk", disk);
        let zram = shallow("create_compressed_ram", || memory.create_compressed_ram(MANY)).expect("room");
        paging(&memory, &space, "compressed RAM", zram);
        let disk = memory.create_ram_disk(MANY).expect("room");
        let cache = shallow("create_compressed_cache", || {
            memory.create_compressed_cache(disk, 16 << PAGE_SIZE.ilog2())
        });
        paging(&memory, &space, "compressed cache", cache.expect("room"));
        exits(&memory);
        limits(&memory);
        texts(&memory, &space);
        scarcity(&space);
        shallow("exit", || drop(space));
    }
    let pin = memory.platform().pin();
    shallow("tick", || memory.tick(&pin));
    drop(pin);
    let summary = shallow("audit", || memory.audit(|_| {}));
    assert!(summary.is_ok(), "the audit found {} violations", summary.violations);
    check_all();
}

/// Calls that change mappings, a fork, and copies after it.
fn calls(memory: &Memory<Toy>, space: &Space<'_, Toy>) {
    let pages = 600;
    let base = map(space, pages);
    assert_eq!(shallow("fault", || write(space, base, pages)), pages);
    shallow("mprotect", || space.mprotect(at(base, 100), 300 * PAGE_SIZE, Protection::READ, false))
        .expect("mprotect");
    shallow("mprotect", || space.mprotect(base, pages * PAGE_SIZE, RW, false)).expect("mprotect");
    shallow("munmap", || space.munmap(at(base, pages - 1), PAGE_SIZE)).expect("munmap");
    let (old, new) = ((pages - 1) * PAGE_SIZE, 2 * pages * PAGE_SIZE);
    // What follows is in the way.
    let block = MapRequest::anonymous(PAGE_SIZE, RW).at(at(base, pages - 1), MapFlags::FIXED);
    shallow("mmap", || space.mmap(&block)).expect("mmap");
    let base = shallow("mremap", || space.mremap(base, old, new, RemapFlags::MAYMOVE, None)).expect("mremap");
    let child = shallow("fork", || space.fork()).expect("fork");
    assert_eq!(shallow("copy", || write(&child, base, pages)), pages);
    shallow("read", || read(&child, base, pages));
    for advice in [Advice::Cold, Advice::Free, Advice::DontNeed, Advice::PopulateWrite, Advice::PageOut] {
        shallow("madvise", || child.madvise(base, new, advice)).expect("madvise");
    }
    let end = shallow("brk", || child.brk(VirtAddr(0)));
    assert!(shallow("brk", || child.brk(at(end, 9))) > end);
    shallow("mlock", || child.mlock(base, 8 * PAGE_SIZE, false)).expect("mlock");
    drop(shallow("pin", || child.pin_page(base, Access::Write)).expect("a page"));
    shallow("mincore", || child.mincore(base, new, |_| {})).expect("mincore");
    shallow("munlock", || child.munlock(base, 8 * PAGE_SIZE)).expect("munlock");
    shallow("exit", || drop(child));
    shallow("munmap", || space.munmap(base, new)).expect("munmap");
    shallow("khugepaged", || memory.khugepaged_step());
}

/// A mapping of large folios, in parts, and made whole again.
fn large_folios(space: &Space<'_, Toy>) {
    let base = map(space, 2 * HUGE);
    let len = 2 * HUGE * PAGE_SIZE;
    shallow("madvise", || space.madvise(base, len, Advice::HugePage)).expect("madvise");
    assert_eq!(shallow("fault", || write(space, base, 2 * HUGE)), 2 * HUGE);
    shallow("mprotect", || space.mprotect(at(base, 300), 9 * PAGE_SIZE, Protection::READ, false))
        .expect("mprotect");
    shallow("mprotect", || space.mprotect(base, len, RW, false)).expect("mprotect");
    // Without memory, or a whole range, it may fail.
    let _ = shallow("collapse", || space.madvise(base, len, Advice::Collapse));
    shallow("read", || read(space, base, 2 * HUGE));
    shallow("munmap", || space.munmap(base, len)).expect("munmap");
}

/// Pages go to a device and come back.
fn paging(memory: &Memory<Toy>, space: &Space<'_, Toy>, name: &str, device: impl SwapDevice<Toy>) {
    let _ = core::fmt::Write::write_fmt(&mut Output(1), format_args!("on a {name}:\n"));
    let device = shallow("swapon", || memory.swapon(device, SwapOnOptions::default())).expect("swapon");
    let pages = 2000;
    let base = map(space, pages);
    shallow("madvise", || space.madvise(base, 2 * HUGE * PAGE_SIZE, Advice::HugePage)).expect("madvise");
    assert_eq!(shallow("fault", || write(space, base, pages)), pages);
    let len = pages * PAGE_SIZE;
    shallow("page-out", || space.madvise(base, len, Advice::PageOut)).expect("madvise");
    assert!(space.figures().swapped > 0);
    shallow("swap-in", || read(space, base, pages));
    shallow("page-out", || space.madvise(base, len, Advice::PageOut)).expect("madvise");
    shallow("madvise", || space.madvise(base, len, Advice::WillNeed)).expect("madvise");
    let child = shallow("fork", || space.fork()).expect("fork");
    shallow("mprotect", || child.mprotect(at(base, 9), HUGE * PAGE_SIZE, Protection::READ, false))
        .expect("mprotect");
    shallow("mprotect", || child.mprotect(base, len, RW, false)).expect("mprotect");
    // What is out is moved, read and made whole where it is then.
    let part = 2 * HUGE * PAGE_SIZE;
    let moved = shallow("mremap", || child.mremap(base, part, 2 * part, RemapFlags::MAYMOVE, None));
    let moved = moved.expect("mremap");
    // Without memory, or a whole range, it may fail.
    let _ = shallow("collapse", || child.madvise(moved, HUGE * PAGE_SIZE, Advice::Collapse));
    shallow("swap-in", || read(&child, moved, 2 * HUGE));
    shallow("page-out", || child.madvise(moved, part, Advice::PageOut)).expect("madvise");
    let _ = shallow("mlock", || child.mlock(moved, 64 * PAGE_SIZE, false));
    shallow("copy", || write(&child, moved, 64));
    shallow("khugepaged", || memory.khugepaged_step());
    let more = map(&child, MANY - pages);
    shallow("fault with reclaim", || write(&child, more, MANY - pages));
    short_calls(memory, &child);
    shallow("kswapd", || memory.kswapd_step());
    shallow("exit", || drop(child));
    shallow("munmap", || space.munmap(base, len / 2)).expect("munmap");
    shallow("swapoff", || memory.swapoff(device, || true)).expect("swapoff");
    shallow("munmap", || space.munmap(base, len)).expect("munmap");
}

/// Calls that find no memory when they have changed something, and so reclaim under their lock: moves of one
/// mapping and of two, whose targets are unmapped, and a change that populates locked memory.
fn short_calls(memory: &Memory<Toy>, space: &Space<'_, Toy>) {
    let (pages, len) = (64, 64 * PAGE_SIZE);
    let mut from = map(space, pages);
    // A program that was killed does not move any more.
    if write(space, from, pages) < pages {
        return;
    }
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    // Where no table is.
    for target in [VirtAddr(1 << 40), VirtAddr(1 << 41)] {
        space.mmap(&MapRequest::anonymous(len, RW).at(target, MapFlags::FIXED)).expect("mmap");
        let moved = without_frames(memory, || {
            shallow("mremap with reclaim", || space.mremap(from, len, len, flags, target))
        });
        assert_eq!(moved, Ok(target));
        from = target;
        space.mprotect(from, 2 * PAGE_SIZE, Protection::READ, false).expect("mprotect");
    }
    space.set_limits(Limits { locked: u64::MAX, ..space.limits() });
    let locked = space.mmap(&MapRequest::anonymous(len, Protection::READ)).expect("mmap");
    space.mlock(locked, len, false).expect("mlock");
    let changed = without_frames(memory, || {
        shallow("mprotect with reclaim", || space.mprotect(locked, len, RW, false))
    });
    assert_eq!(changed, Ok(()));
    space.munmap(locked, len).expect("munmap");
}

/// Does `call` while all free frames are taken.
fn without_frames<T>(memory: &Memory<Toy>, call: impl FnOnce() -> T) -> T {
    let frames = memory.kernel_frames();
    let mut taken = [Pfn(0); 4096];
    let mut count = 0;
    while let Ok(frame) = frames.allocate(Order::ZERO) {
        taken[count] = frame;
        count += 1;
    }
    let result = call();
    for &frame in &taken[..count] {
        // SAFETY: it was allocated above, and nothing uses it.
        unsafe { frames.free(frame, Order::ZERO) }.expect("a frame");
    }
    result
}

/// A program exits while another thread has the last handle to its space: one that reclaims, kswapd, and one
/// that has chosen it to be killed.
fn exits(memory: &Memory<Toy>) {
    let disk = memory.create_ram_disk(MANY).expect("room");
    let device = memory.swapon(disk, SwapOnOptions::default()).expect("swapon");
    leave(memory, |other, base| {
        assert!(shallow("exit below a fault", || fill(other, base, MOST)));
    });
    leave(memory, |other, base| {
        // Not so many at once that the program has to reclaim.
        for page in (0..MOST).step_by(8).take_while(|_| drops_at_next_flush()) {
            assert!(fill(other, at(base, page), 8));
            shallow("exit below kswapd", || memory.kswapd_step());
        }
    });
    memory.swapoff(device, || true).expect("swapoff");
    leave(memory, |other, base| {
        assert!(shallow("exit below the OOM killer", || fill(other, base, MOST)));
    });
}

/// Fills most of the memory with a program's pages. It exits while `work`, which has a program with a
/// mapping, has its space in hand.
fn leave(memory: &Memory<Toy>, work: impl FnOnce(&Space<'_, Toy>, VirtAddr)) {
    let spaces = || {
        let mut count = 0;
        memory.for_each_resident(|_, _| count += 1);
        count
    };
    let leaving = memory.create_space().expect("a space");
    let base = map(&leaving, MOST);
    assert_eq!(write(&leaving, base, MOST), MOST);
    let other = memory.create_space().expect("a space");
    let base = map(&other, MOST);
    let before = spaces();
    // SAFETY: the program ends below if there was no flush. The next one is that of the program's pages, the
    // oldest and the most, for a thread that has a handle of its own.
    unsafe { drop_at_next_flush(leaving) };
    work(&other, base);
    assert!(!drops_at_next_flush(), "nothing was flushed");
    assert_eq!(spaces(), before - 1, "the program has not exited");
}

/// A memcg at its limit, and one above it.
fn limits(memory: &Memory<Toy>) {
    let disk = memory.create_compressed_ram(MANY).expect("room");
    let device = memory.swapon(disk, SwapOnOptions::default()).expect("swapon");
    let group = shallow("create_memcg", || memory.create_memcg(MemcgId::ROOT, "group")).expect("a memcg");
    let write_file = |name, text| shallow("write_memcg_file", || memory.write_memcg_file(group, name, text));
    write_file("memory.max", "1M").expect("a limit");
    write_file("memory.swap.max", "4M").expect("a limit");
    write_file("memory.low", "256K").expect("a limit");
    let space = memory.create_space().expect("a space");
    shallow("set_memcg", || space.set_memcg(group)).expect("set_memcg");
    let base = map(&space, MANY);
    let written = shallow("fault at a limit", || write(&space, base, MANY));
    assert!(written > 256 && written < MANY, "the program was killed after {written} pages");
    shallow("reap", || space.oom().reap());
    write_file("memory.high", "512K").expect("a limit");
    let other = memory.create_space().expect("a space");
    other.set_memcg(group).expect("set_memcg");
    let base = map(&other, 512);
    shallow("fault above memory.high", || write(&other, base, 512));
    let _ = write_file("memory.max", "128K");
    shallow("exit", || drop(other));
    shallow("exit", || drop(space));
    let _ = shallow("write_memcg_file", || memory.write_memcg_file(MemcgId::ROOT, "memory.reclaim", "1M"));
    shallow("remove_memcg", || memory.remove_memcg(group)).expect("it is empty");
    memory.swapoff(device, || true).expect("swapoff");
}

/// What is shown of it all.
fn texts(memory: &Memory<Toy>, space: &Space<'_, Toy>) {
    let mut out = Output(1);
    shallow("proc", || {
        proc::meminfo(memory, &mut out)?;
        proc::swaps(memory, &mut out)?;
        proc::vmstat(memory, &mut out)?;
        proc::zoneinfo(memory, &mut out)?;
        proc::buddyinfo(memory, &mut out)?;
        proc::pagetypeinfo(memory, &mut out)?;
        proc::slabinfo(memory, &mut out)?;
        proc::lock_stat(memory, &mut out)?;
        proc::extfrag_index(memory, &mut out)
    })
    .expect("stdout");
    shallow("proc of a space", || {
        proc::maps(space, &mut out)?;
        proc::smaps(space, &mut out)?;
        proc::status(&space.figures(), &mut out)?;
        proc::oom_score(memory, space, &mut out)
    })
    .expect("stdout");
    shallow("memcg file", || proc::memcg_file(memory, "memory.stat", None, &mut out)).expect("stdout");
}

/// Memory ends, without a device.
fn scarcity(space: &Space<'_, Toy>) {
    let base = map(space, MANY);
    let written = shallow("fault without memory", || write(space, base, MANY));
    assert!(written < MANY, "16 MiB of RAM do not hold more");
}
