//! A device that completes requests later.

use crate::common::*;
use quire_frame::{AllocRequest, FailSite, Frames};
use quire_host::swap::{Completion, HostRam, SlowConfig, SlowDevice};
use quire_swap::{DeviceError, DeviceFlags, DeviceMemory, Direction, PageIo, RamDisk, Submitted, SwapDevice};

type Slow = SlowDevice<RamDisk<HostPlatform>>;

fn plain_machine() -> Machine {
    Machine::new(&HostConfig::with_ram(16 << 20).cpus(1), MemoryConfig::default()).expect("a machine")
}

fn slow(frames: &Frames<HostPlatform>, config: SlowConfig) -> Slow {
    SlowDevice::new(RamDisk::new(frames, 64).expect("there is memory"), config)
}

fn frame(frames: &Frames<HostPlatform>) -> Pfn {
    let request = AllocRequest::new(Order::ZERO, FailSite::new("test"));
    frames.allocate(&frames.platform().pin(), request).expect("there is memory")
}

fn fill_frame(frames: &Frames<HostPlatform>, pfn: Pfn, byte: u8) {
    // SAFETY: the frame is the test's.
    unsafe { frames.platform().direct_map(pfn).write_bytes(byte, 4096) };
}

fn is_all(frames: &Frames<HostPlatform>, pfn: Pfn, byte: u8) -> bool {
    // SAFETY: the frame is the test's.
    unsafe { frames.platform().direct_map(pfn).cast::<[u8; 4096]>().read() == [byte; 4096] }
}

fn request(direction: Direction, slot: u64, pfn: Pfn) -> PageIo {
    PageIo { direction, slot, pfn, pages: 1 }
}

fn submit<D: SwapDevice<HostPlatform>>(
    frames: &Frames<HostPlatform>,
    device: &SlowDevice<D>,
    io: PageIo,
) -> Submitted {
    // SAFETY: the frames are the test's, which frees none while the device has it.
    unsafe { device.submit(DeviceMemory::new(frames), io) }
}

fn done<D: SwapDevice<HostPlatform>>(
    frames: &Frames<HostPlatform>,
    device: &SlowDevice<D>,
) -> Vec<(u64, Result<(), DeviceError>)> {
    let mut all = Vec::new();
    device.reap(DeviceMemory::new(frames), &mut |io, result| all.push((io.slot, result)));
    all
}

#[test]
fn work_is_done_at_the_nth_reap_and_not_before() {
    let machine = plain_machine();
    let frames = machine.memory().frames();
    let device =
        slow(frames, SlowConfig { completion: Completion::AfterReaps(2), queue: 2, ..SlowConfig::default() });
    assert!(!device.flags().contains(DeviceFlags::SYNCHRONOUS));
    let page = frame(frames);
    fill_frame(frames, page, 1);
    assert_eq!(submit(frames, &device, request(Direction::Write, 5, page)), Submitted::Begun);
    assert!(device.has_done(), "a waiter has to reap");
    assert_eq!(done(frames, &device), []);
    // What counts is the content of the page when it is written.
    fill_frame(frames, page, 2);
    assert_eq!(submit(frames, &device, request(Direction::Read, 9, page)), Submitted::Begun);
    assert_eq!(submit(frames, &device, request(Direction::Read, 9, page)), Submitted::QueueFull);
    fill_frame(frames, page, 2);
    assert_eq!(done(frames, &device), [(5, Ok(()))]);
    assert_eq!(done(frames, &device), [(9, Ok(()))]);
    assert!(is_all(frames, page, 0), "nothing was written there");
    assert!(!device.has_done());

    assert_eq!(submit(frames, &device, request(Direction::Read, 5, page)), Submitted::Begun);
    assert!(!is_all(frames, page, 2), "it is not there yet");
    assert_eq!((done(frames, &device), done(frames, &device)), (vec![], vec![(5, Ok(()))]));
    assert!(is_all(frames, page, 2));
    device.close(DeviceMemory::new(frames));
}

#[test]
fn work_is_done_when_told_and_the_nth_fails() {
    let machine = plain_machine();
    let frames = machine.memory().frames();
    let config = SlowConfig {
        completion: Completion::WhenTold,
        fail_read: Some(2),
        fail_write: Some(1),
        ..SlowConfig::default()
    };
    let device = slow(frames, config);
    let page = frame(frames);
    fill_frame(frames, page, 7);
    for slot in 0..3 {
        assert_eq!(submit(frames, &device, request(Direction::Write, slot, page)), Submitted::Begun);
    }
    assert_eq!(done(frames, &device), []);
    assert!(!device.has_done());
    assert_eq!((device.complete(DeviceMemory::new(frames), 2), device.waiting()), (2, 1));
    assert!(device.has_done());
    assert_eq!(done(frames, &device), [(0, Err(DeviceError::Io)), (1, Ok(()))]);
    assert_eq!(device.inner().report().stored_pages, 1);
    assert_eq!(
        (device.complete(DeviceMemory::new(frames), 9), device.complete(DeviceMemory::new(frames), 9)),
        (1, 0)
    );
    assert_eq!(done(frames, &device), [(2, Ok(()))]);
    for slot in 1..3 {
        assert_eq!(submit(frames, &device, request(Direction::Read, slot, page)), Submitted::Begun);
        device.complete(DeviceMemory::new(frames), 1);
        let failed = slot == 2;
        assert_eq!(done(frames, &device), [(slot, if failed { Err(DeviceError::Io) } else { Ok(()) })]);
        assert_eq!(is_all(frames, page, 7), !failed, "a failed read leaves nothing that could be used");
    }
    device.close(DeviceMemory::new(frames));
}

const WHEN_TOLD: SlowConfig =
    SlowConfig { completion: Completion::WhenTold, queue: 16, fail_read: None, fail_write: None };

/// Hazard: a request that waits when its device is closed is carried out in what is another owner's frame by
/// then.
#[test]
fn what_waits_when_the_device_is_closed_is_not_carried_out() {
    let machine = plain_machine();
    let frames = machine.memory().frames();
    let (memory, page) = (DeviceMemory::new(frames), frame(frames));
    let device = SlowDevice::new(HostRam::new(8).unwrap(), WHEN_TOLD);
    for direction in [Direction::Write, Direction::Read, Direction::Read] {
        assert_eq!(submit(frames, &device, request(direction, 3, page)), Submitted::Begun);
    }
    assert_eq!((device.complete(memory, 1), device.waiting()), (1, 2));
    SwapDevice::close(&device, memory);
    fill_frame(frames, page, 7);
    assert_eq!((device.waiting(), device.complete(memory, 9)), (0, 0));
    assert_eq!(done(frames, &device), []);
    assert!(is_all(frames, page, 7));
}

/// Hazard: the same, in the next machine, where that lies where the one before was.
#[test]
fn a_request_of_a_machine_that_is_gone_fails_in_the_next_one() {
    let device = SlowDevice::new(HostRam::new(8).unwrap(), WHEN_TOLD);
    for is_next in [false, true] {
        let machine = plain_machine();
        let frames = machine.memory().frames();
        let page = frame(frames);
        if !is_next {
            assert_eq!(submit(frames, &device, request(Direction::Read, 3, page)), Submitted::Begun);
            continue;
        }
        fill_frame(frames, page, 7);
        assert_eq!(device.complete(DeviceMemory::new(frames), 9), 1);
        assert_eq!(done(frames, &device), [(3, Err(DeviceError::Io))]);
        assert!(is_all(frames, page, 7));
    }
}
