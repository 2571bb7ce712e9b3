//! The page-table code of the crate `x86_64` on Quire's frames: maps, translates, unmaps, and gives all
//! tables back.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use quire_arch::{Order, Pfn, Platform};
use quire_frame::{AllocRequest, FrameConfig, Frames, KernelFrames};
use quire_host::{HostConfig, HostPlatform};
use quire_x86_64::X86Frames;
use x86_64::structures::paging::mapper::{MappedPageTable, PageTableFrameMapping};
use x86_64::structures::paging::{
    FrameAllocator, FrameDeallocator, Mapper, Page, PageTable, PageTableFlags, PhysFrame, Size2MiB, Size4KiB,
    Translate,
};
use x86_64::{PhysAddr, VirtAddr};

/// Where the tables are in this process: the machine's direct map.
struct DirectMap<'f>(KernelFrames<'f, HostPlatform>);

impl DirectMap<'_> {
    fn pointer(&self, frame: PhysFrame) -> *mut PageTable {
        self.0.platform().direct_map(Pfn(frame.start_address().as_u64() >> 12)).as_ptr().cast()
    }
}

// SAFETY: the direct map reaches every frame of RAM, and tables are frames of RAM.
unsafe impl PageTableFrameMapping for DirectMap<'_> {
    fn frame_to_pointer(&self, frame: PhysFrame) -> *mut PageTable {
        self.pointer(frame)
    }
}

fn on_a_machine(test: impl FnOnce(&Frames<HostPlatform>, X86Frames<'_, HostPlatform>)) {
    let platform: HostPlatform = HostPlatform::new(&HostConfig::with_ram(16 << 20)).unwrap();
    let _cpu = platform.vcpu(0).unwrap();
    let frames = Frames::new(platform, FrameConfig::default()).unwrap();
    let before = frames.reports().free_frames();
    test(&frames, X86Frames::new(KernelFrames::new(&frames)));
    assert_eq!(frames.reports().free_frames(), before, "frames were lost");
    frames.audit().validate(&mut |violation| panic!("{violation}"));
}

#[test]
fn the_mapper_of_the_crate_works_on_quires_frames() {
    on_a_machine(|frames, mut x86| {
        let root: PhysFrame = x86.allocate_frame().unwrap();
        let direct = DirectMap(KernelFrames::new(frames));
        // SAFETY: the root is this test's, and is made a table here.
        let table = unsafe {
            direct.pointer(root).write(PageTable::new());
            &mut *direct.pointer(root)
        };
        // SAFETY: the table is valid, and the direct map reaches all frames.
        let mut mapper = unsafe { MappedPageTable::new(table, direct) };
        let page = Page::<Size4KiB>::containing_address(VirtAddr::new(0xffff_8000_1234_5000));
        let target: PhysFrame = x86.allocate_frame().unwrap();
        let flags = PageTableFlags::PRESENT | PageTableFlags::WRITABLE;
        // SAFETY: no CPU walks these tables.
        unsafe { mapper.map_to(page, target, flags, &mut x86) }.unwrap().ignore();
        assert_eq!(mapper.translate_addr(page.start_address() + 8), Some(target.start_address() + 8));
        let (unmapped, flush) = mapper.unmap(page).unwrap();
        flush.ignore();
        assert_eq!(unmapped, target);
        // SAFETY: nothing maps the frames or walks the tables any more.
        unsafe {
            x86.deallocate_frame(target);
            x86_64::structures::paging::mapper::CleanUp::clean_up(&mut mapper, &mut x86);
            x86.deallocate_frame(root);
        }
    });
}

#[test]
fn large_frames_are_aligned_and_come_back_and_the_end_is_told() {
    on_a_machine(|_, mut x86| {
        let mut large: Vec<PhysFrame<Size2MiB>> = std::iter::from_fn(|| x86.allocate_frame()).collect();
        assert!((4..8).contains(&large.len()), "{} blocks of 2 MiB in 16 MiB", large.len());
        let mut small: Vec<PhysFrame<Size4KiB>> = std::iter::from_fn(|| x86.allocate_frame()).collect();
        assert!(!small.is_empty());
        // SAFETY: nothing uses them.
        large.drain(..).for_each(|frame| unsafe { x86.deallocate_frame(frame) });
        // SAFETY: nothing uses them.
        small.drain(..).for_each(|frame| unsafe { x86.deallocate_frame(frame) });
    });
}

/// The trait asks only that a frame is unused. So are one that is free, boot memory, and the first page of an
/// unused large block; the crate's `clean_up` gives back a boot loader's tables.
#[test]
fn a_frame_of_another_origin_is_left_as_it_is() {
    on_a_machine(|frames, mut x86| {
        let pin = frames.platform().pin();
        let named =
            |pfn: Pfn| PhysFrame::<Size4KiB>::from_start_address(PhysAddr::new(pfn.to_phys().0)).unwrap();
        let of_user = frames.allocate(&pin, AllocRequest::anonymous()).unwrap();
        let large: PhysFrame<Size2MiB> = x86.allocate_frame().unwrap();
        let of_large = Pfn(large.start_address().as_u64() >> 12);
        let free = KernelFrames::new(frames).allocate(Order::ZERO).unwrap();
        // SAFETY: nothing uses it.
        unsafe { x86.deallocate_frame(named(free)) };
        let reserved = frames.reserved().start();
        let beyond = Pfn(1 << 30);
        let before = frames.reports().free_frames();
        for pfn in [of_user, of_large, of_large.offset(1), free, reserved, beyond] {
            // SAFETY: nothing uses it.
            unsafe { x86.deallocate_frame(named(pfn)) };
            assert_eq!(frames.reports().free_frames(), before, "{pfn:?} was freed");
        }
        frames.free(&pin, of_user, Order::ZERO).unwrap();
        // SAFETY: nothing uses it.
        unsafe { x86.deallocate_frame(large) };
    });
}
