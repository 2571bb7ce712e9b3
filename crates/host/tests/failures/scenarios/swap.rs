//! Pages that are swapped out and in, and their devices.

use crate::common::*;
use crate::driver::DEVICE;
use crate::scenario::{Scenario, Undone, is_no_frames};
use crate::scene::{BASE, Scene, access, filled, fork_once};
use quire_fault::{Ahead, SwapIn};
use quire_frame::FolioCounter;
use quire_host::swap::{SlowConfig, SlowDevice};
use quire_memcg::Membership;
use quire_mm::proc::HugeFile;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("a_swap_in_succeeds_or_leaves_the_page_out", paged_out, |scene| access(scene.read(BASE)))
        .refused(is_unavailable)
        .succeeded(|scene| scene.assert_filled(0..16))
        .allocations(1..=2),
    Scenario::new("a_write_to_a_swapped_page", paged_out, |scene| access(scene.write(BASE + 5 * PAGE, 105)))
        .refused(is_unavailable)
        .succeeded(|scene| scene.assert_filled(0..16)),
    Scenario::new("a_write_to_a_shared_swapped_page", paged_out_and_shared, |scene| {
        access(scene.write(BASE + 5 * PAGE, 7))
    })
    .undone(Undone::Contents)
    .refused(is_unavailable)
    .succeeded(|scene| {
        assert_eq!(scene.read_in(&scene.others.borrow()[0], BASE + 5 * PAGE), Ok(105));
        assert_eq!(scene.read(BASE + 5 * PAGE), Ok(7));
    }),
    Scenario::new("shared_memory_comes_back_or_stays_out", shared_paged_out, |scene| {
        (0..16).try_for_each(|at| access(scene.read(BASE + at * PAGE)))
    })
    .undone(Undone::Contents)
    .refused(is_unavailable)
    .hides(shared_is_there)
    .succeeded(shared_is_there),
    Scenario::new(
        "a_page_comes_back_out_of_a_large_folio_or_stays_out",
        shared_words_paged_out,
        read_under_a_large_folio,
    )
    .undone(Undone::Contents)
    .refused(is_unavailable)
    .hides(each_is_there)
    .succeeded(each_is_there),
    Scenario::new("a_large_piece_comes_back_page_by_page_or_stays_out", large_paged_out, |scene| {
        scene.space.madvise(VirtAddr(LARGE + 3 * PAGE), PAGE, Advice::WillNeed)?;
        (0..16).try_for_each(|at| access(scene.read(LARGE + at * PAGE)))
    })
    .undone(Undone::Contents)
    .refused(is_unavailable)
    .hides(large_is_there)
    .succeeded(large_is_there),
    Scenario::new("a_large_folio_without_slots_is_split_or_stays", large_without_slots, |scene| {
        scene.space.madvise(VirtAddr(LARGE), 16 * PAGE, Advice::PageOut)
    })
    .hides(large_is_there)
    .succeeded(large_is_there),
    // Its store gets a node for the pages.
    Scenario::new("advice_for_a_part_of_a_large_folio_of_shared_memory_splits_it_or_not", large, |scene| {
        scene.space.madvise(VirtAddr(LARGE + 5 * PAGE), PAGE, Advice::Cold)
    })
    .hides(large_is_there)
    .succeeded(|scene| {
        let split = scene.machine.memory().frames().events().folios(FOLIO, FolioCounter::Split);
        assert_ne!(split, 0);
        large_is_there(scene);
    }),
    Scenario::new("a_fork_of_swapped_pages_leaves_no_child", paged_out, fork_once).succeeded(|scene| {
        assert_eq!(scene.read_in(&scene.others.borrow()[0], BASE + 5 * PAGE), Ok(105));
        scene.assert_filled(0..16);
    }),
    // A page that gets no memory on its way out stays, and no error is reported.
    Scenario::new("pages_are_swapped_out_or_stay", compressed, page_out)
        .hides(|scene| scene.assert_filled(0..16))
        .succeeded(|scene| {
            assert_eq!(scene.space.figures().swapped, 16 * PAGE);
            scene.assert_filled(0..16);
        }),
    Scenario::new("pages_are_swapped_to_a_ram_disk_or_stay", on_ramdisk, page_out)
        .hides(|scene| scene.assert_filled(0..16))
        .succeeded(|scene| {
            assert_eq!(scene.space.figures().swapped, 16 * PAGE);
            scene.assert_filled(0..16);
        }),
    Scenario::new("pages_are_swapped_to_a_compressed_cache_or_stay", cached, page_out)
        .hides(|scene| scene.assert_filled(0..16))
        .succeeded(|scene| scene.assert_filled(0..16)),
    // The cache accepts nothing, and looks for older pages to write back.
    Scenario::new("pages_are_swapped_past_a_full_compressed_cache_or_stay", cache_of_nothing, page_out)
        .hides(|scene| scene.assert_filled(0..16))
        .succeeded(|scene| scene.assert_filled(0..16)),
    // Pages around the faulting one need not be read.
    Scenario::new("a_swap_in_with_readahead_fails_or_succeeds", far_away, |scene| {
        let result = (0..16).try_for_each(|at| access(scene.read(BASE + at * PAGE)));
        // No access waits for what was read ahead.
        (0..16).for_each(|_| scene.machine.memory().swap().io().reap());
        result
    })
    .undone(Undone::Contents)
    .refused(is_unavailable)
    .hides(|scene| scene.assert_filled(0..16))
    .succeeded(|scene| scene.assert_filled(0..16)),
    // WILLNEED reads pages, or leaves them where they are.
    Scenario::new("willneed_reads_pages_or_leaves_them_out", paged_out, will_need)
        .hides(|scene| scene.assert_filled(0..16))
        .succeeded(all_in_memory),
    Scenario::new("willneed_on_a_slow_device_reads_pages_or_leaves_them_out", far_away, |scene| {
        let result = will_need(scene);
        (0..16).for_each(|_| scene.machine.memory().swap().io().reap());
        result
    })
    .hides(|scene| scene.assert_filled(0..16))
    .succeeded(all_in_memory),
    Scenario::new("a_swap_in_of_zeros_fails_or_reads_zeros", zeros_paged_out, |scene| {
        access(scene.read(BASE))
    })
    .refused(is_unavailable)
    .hides(|scene| assert_eq!(scene.read(BASE), Ok(0)))
    .succeeded(|scene| assert_eq!(scene.read(BASE), Ok(0))),
    Scenario::new("swapoff_succeeds_or_keeps_the_device", paged_out, |scene| {
        let id = *scene.devices.borrow().last().expect("there is one");
        match scene.machine.memory().swapoff(id, || true) {
            Ok(()) => {
                scene.devices.borrow_mut().pop();
                Ok(())
            }
            Err(SwapOffError::OutOfMemory(cause)) => Err(cause.into()),
            Err(other) => panic!("{other}"),
        }
    })
    .undone(Undone::Contents)
    .refused(|scene, error| {
        is_no_frames(scene, error);
        assert_eq!(scene.machine.memory().swap().devices().total_slots(), SLOTS, "it is in use again");
        assert_kept(scene);
        page_out(scene).expect("nothing fails any more");
    })
    .hides(assert_kept)
    .succeeded(|scene| {
        assert_eq!(scene.machine.memory().swap().devices().total_slots(), 0);
        assert_eq!(scene.space.figures().swapped, 0);
        assert_kept(scene);
    }),
    Scenario::new("a_compressed_device_comes_whole_or_not_at_all", filled, |scene| {
        swapon(scene, Keeps::Compressed)
    })
    .refused(no_device)
    .succeeded(one_device),
    Scenario::new("a_plain_device_comes_whole_or_not_at_all", filled, |scene| swapon(scene, Keeps::Plain))
        .refused(no_device)
        .succeeded(one_device),
];

/// No memory, or the device failed.
fn is_unavailable(scene: &Scene<'_>, error: Error) {
    if error != Error::BadAddress {
        is_no_frames(scene, error);
    }
}

/// Panics unless each page reads as it was written, or could not be read from the device during swapoff.
fn assert_kept(scene: &Scene<'_>) {
    let mut callers = scene.machine.memory().frames().fail_points().callers();
    let failed = callers.any(|caller| caller.site == DEVICE && caller.failed > 0);
    for at in 0..16 {
        match scene.read(BASE + at * PAGE) {
            Ok(word) => assert_eq!(word, 100 + at),
            Err(error) => {
                assert!(failed && error == AccessError::Fault(FaultError::Bus), "{error}");
            }
        }
    }
}

/// Slots of a device: more than one cluster.
const SLOTS: u64 = 1024;

/// How a device keeps pages.
#[derive(Clone, Copy)]
enum Keeps {
    Compressed,
    Plain,
    /// Uncompressed, behind a compressed cache of so many bytes.
    Cached(u64),
    /// Uncompressed, and completes late.
    Late,
}

/// Adds a device in RAM.
fn swapon(scene: &Scene<'_>, keeps: Keeps) -> Result<(), Error> {
    let memory = scene.machine.memory();
    let frames = memory.frames();
    let options = SwapOnOptions::default();
    let id = match keeps {
        Keeps::Compressed => memory.swapon(CompressedRam::new(frames, SLOTS, Lz4)?, options),
        Keeps::Plain => memory.swapon(RamDisk::new(frames, SLOTS)?, options),
        Keeps::Cached(limit) => {
            memory.swapon(CompressedCache::new(frames, RamDisk::new(frames, SLOTS)?, limit)?, options)
        }
        Keeps::Late => {
            let late = SlowDevice::new(RamDisk::new(frames, SLOTS)?, SlowConfig::default());
            memory.swapon(late, options)
        }
    };
    let id = id.map_err(|error| match error {
        SwapOnError::NoMemory(cause) => Error::NoFrames(cause),
        other => panic!("{other}"),
    })?;
    scene.devices.borrow_mut().push(id);
    Ok(())
}

fn no_device(scene: &Scene<'_>, error: Error) {
    is_no_frames(scene, error);
    assert_eq!(scene.machine.memory().swap().devices().reports().count(), 0);
}

fn one_device(scene: &Scene<'_>) {
    assert_eq!(scene.machine.memory().swap().devices().free_slots(), SLOTS);
}

fn page_out(scene: &Scene<'_>) -> Result<(), Error> {
    scene.space.madvise(VirtAddr(BASE), 16 * PAGE, Advice::PageOut)
}

fn will_need(scene: &Scene<'_>) -> Result<(), Error> {
    scene.space.madvise(VirtAddr(BASE), 16 * PAGE, Advice::WillNeed)
}

/// Panics unless the filled range is in memory, and none of it is mapped.
fn all_in_memory(scene: &Scene<'_>) {
    scene
        .space
        .mincore(VirtAddr(BASE), 16 * PAGE, |is| assert!(is, "a page is missing"))
        .expect("it is mapped");
    assert_eq!(scene.space.figures().swapped, 16 * PAGE);
    scene.assert_filled(0..16);
}

/// The filled range, and a device.
fn with(scene: &Scene<'_>, keeps: Keeps) {
    swapon(scene, keeps).expect("nothing fails yet");
    filled(scene);
}

fn compressed(scene: &Scene<'_>) {
    with(scene, Keeps::Compressed);
}

fn on_ramdisk(scene: &Scene<'_>) {
    with(scene, Keeps::Plain);
}

fn cached(scene: &Scene<'_>) {
    with(scene, Keeps::Cached(1 << 20));
}

fn cache_of_nothing(scene: &Scene<'_>) {
    with(scene, Keeps::Cached(0));
}

/// The filled range on a slow device, and nothing of it in memory.
fn far_away(scene: &Scene<'_>) {
    with(scene, Keeps::Late);
    page_out(scene).expect("nothing fails yet");
    let memory = scene.machine.memory();
    for _ in 0..3 {
        memory.swap().io().reap();
        memory.reclaim(MemcgId::ROOT, 16);
    }
    assert_eq!(memory.swap().devices().cached_pages(), 0);
}

/// The filled range on a device.
fn paged_out(scene: &Scene<'_>) {
    compressed(scene);
    page_out(scene).expect("nothing fails yet");
    assert_eq!(scene.space.figures().swapped, 16 * PAGE);
}

/// Shared memory, of which each other page is full of zeros, on a device.
fn shared_paged_out(scene: &Scene<'_>) {
    shared_paged_out_with(scene, |at| at % 2 * at);
}

fn shared_paged_out_with(scene: &Scene<'_>, word: impl Fn(u64) -> u64) {
    compressed(scene);
    scene.space.munmap(VirtAddr(BASE), 16 * PAGE).expect("it is mapped");
    let request = MapRequest { flags: MapFlags::SHARED, ..MapRequest::anonymous(16 * PAGE, RW) };
    scene.space.mmap(&request.at(VirtAddr(BASE), MapFlags::FIXED)).expect("nothing fails yet");
    (0..16).for_each(|at| scene.write(BASE + at * PAGE, word(at)).expect("nothing fails yet"));
    page_out(scene).expect("nothing fails yet");
    assert_eq!(scene.machine.memory().file_totals().shmem, 0);
}

/// Where a folio of 64 KiB begins.
const LARGE: u64 = BASE + 4 * PAGE;
const FOLIO: Order = Order::ALL[4];

/// One folio of shared memory with the numbers of its pages.
fn large(scene: &Scene<'_>) {
    let memory = scene.machine.memory();
    let size = HugeFile::find("hugepages-64kB/shmem_enabled").expect("it is there");
    size.write(memory, "always").expect("it is a word");
    let request = MapRequest { flags: MapFlags::SHARED, ..MapRequest::anonymous(16 * PAGE, RW) };
    scene.space.mmap(&request.at(VirtAddr(LARGE), MapFlags::FIXED)).expect("nothing fails yet");
    (0..16).for_each(|at| scene.write(LARGE + at * PAGE, at + 1).expect("nothing fails yet"));
    assert_ne!(memory.frames().events().folios(FOLIO, FolioCounter::ShmemAlloc), 0);
}

/// The same on a device, in one piece.
fn large_paged_out(scene: &Scene<'_>) {
    compressed(scene);
    large(scene);
    scene.space.madvise(VirtAddr(LARGE), 16 * PAGE, Advice::PageOut).expect("nothing fails yet");
    assert_ne!(scene.machine.memory().frames().events().folios(FOLIO, FolioCounter::Swpout), 0);
}

/// The same in memory, where there is no block of slots for it.
fn large_without_slots(scene: &Scene<'_>) {
    filled(scene);
    let few = swap_on_ram(scene.machine, 24);
    scene.devices.borrow_mut().push(few);
    page_out(scene).expect("nothing fails yet");
    (0..16).step_by(2).for_each(|at| scene.write(BASE + at * PAGE, at).expect("nothing fails yet"));
    let elsewhere = VirtAddr(BASE + 64 * PAGE);
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    let moved = scene.space.mremap(VirtAddr(BASE), 16 * PAGE, 16 * PAGE, flags, elsewhere);
    moved.expect("nothing fails yet");
    large(scene);
}

fn large_is_there(scene: &Scene<'_>) {
    (0..16).for_each(|at| assert_eq!(scene.read(LARGE + at * PAGE), Ok(at + 1)));
}

/// The same without zeros.
fn shared_words_paged_out(scene: &Scene<'_>) {
    shared_paged_out_with(scene, |at| at + 1);
}

/// Reads a large folio over the slots, as if they were those of private memory still, and then each page.
fn read_under_a_large_folio(scene: &Scene<'_>) -> Result<(), Error> {
    let membership = Membership::default();
    let swap_in = SwapIn::new(scene.machine.memory().spaces().memory(), &membership);
    let first = SlotId::new(DeviceId::new(0).expect("the first"), 0);
    // Without memory for it the pages are read one by one.
    let _ = swap_in.begin_ahead(first, orders(&[4]), Ahead::Wanted);
    (0..16).try_for_each(|at| access(scene.read(BASE + at * PAGE)))
}

fn shared_is_there(scene: &Scene<'_>) {
    (0..16).for_each(|at| assert_eq!(scene.read(BASE + at * PAGE), Ok(at % 2 * at)));
}

fn each_is_there(scene: &Scene<'_>) {
    (0..16).for_each(|at| assert_eq!(scene.read(BASE + at * PAGE), Ok(at + 1)));
}

/// The filled range, of which the first page is full of zeros.
fn zeros_paged_out(scene: &Scene<'_>) {
    compressed(scene);
    scene.write(BASE, 0).expect("nothing fails yet");
    page_out(scene).expect("nothing fails yet");
}

/// All of it on a device, with a child that shares it.
fn paged_out_and_shared(scene: &Scene<'_>) {
    paged_out(scene);
    let child = scene.space.fork().expect("nothing fails yet");
    scene.others.borrow_mut().push(child);
}
