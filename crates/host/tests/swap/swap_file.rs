//! The swap device on a file of the host, with both of its engines.

#![cfg(not(any(loom, shuttle)))]

use crate::common::*;
use proptest::collection::vec;
use proptest::prelude::*;
use quire_frame::{AllocRequest, FailSite};
use quire_host::swap::{Engine, FileDevice, FileDeviceOptions, HostRam, make_swap};
use quire_swap::{DeviceError, DeviceMemory, Direction, PageIo, Submitted, SwapDevice};
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use tempfile::{Builder, TempPath};

const PAGE: usize = 4096;
const SLOTS: u64 = 96;

/// A file of this test's own, in a folder on a disk.
struct Scratch(TempPath);

impl Scratch {
    fn new() -> Self {
        // The name only.
        Self(Builder::new().prefix("quire-swap-").make(|_| Ok(())).unwrap().into_temp_path())
    }

    fn with_swap(slots: u64) -> Self {
        let file = Self::new();
        make_swap(&file.0, slots).unwrap();
        file
    }
}

fn audited_machine() -> Machine {
    let mut config = HostConfig::with_ram(16 << 20).cpus(1);
    config.audit_at_end = true;
    Machine::new(&config, MemoryConfig::default()).unwrap()
}

/// Frames of a machine, consecutive, for a test to use as it likes.
struct Frames<'m> {
    machine: &'m Machine,
    first: Pfn,
    order: Order,
}

impl<'m> Frames<'m> {
    fn new(machine: &'m Machine, order: u8) -> Self {
        let order = Order::new(order).unwrap();
        let frames = machine.memory().frames();
        let request = AllocRequest::new(order, FailSite::new("swap file test"));
        let first = frames.allocate(&machine.memory().platform().pin(), request).unwrap();
        Self { machine, first, order }
    }

    fn platform(&self) -> &HostPlatform {
        self.machine.memory().platform()
    }

    fn at(&self, page: u64) -> Pfn {
        Pfn(self.first.0 + page)
    }

    fn fill(&self, page: u64, byte: u8) {
        // SAFETY: the frame is the test's own, and no device uses it now.
        unsafe { self.platform().direct_map(self.at(page)).as_ptr().write_bytes(byte, PAGE) };
    }

    /// The byte that the whole page holds.
    fn byte(&self, page: u64) -> u8 {
        let start = self.platform().direct_map(self.at(page)).as_ptr();
        // SAFETY: as in `fill`.
        let bytes = unsafe { std::slice::from_raw_parts(start, PAGE) };
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "the page is a mixture");
        bytes[0]
    }
}

impl Drop for Frames<'_> {
    fn drop(&mut self) {
        let memory = self.machine.memory();
        memory.frames().free(&memory.platform().pin(), self.first, self.order).unwrap();
    }
}

fn open(machine: &Machine, file: &Scratch, engine: Engine, depth: usize) -> Option<FileDevice> {
    let options = FileDeviceOptions { engine: Some(engine), direct: true, depth };
    match FileDevice::open(machine.memory().platform(), &file.0, options) {
        Ok(device) => Some(device),
        Err(error) if engine == Engine::Ring && error.to_string().contains("permits no io_uring") => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs a test with each engine that the host permits.
fn with_engines(depth: usize, test: impl Fn(&Machine, &Scratch, &FileDevice)) {
    for engine in [Engine::Ring, Engine::Pool] {
        let (machine, file) = (audited_machine(), Scratch::with_swap(SLOTS));
        if let Some(device) = open(&machine, &file, engine, depth) {
            assert_eq!((device.slots(), device.engine()), (SLOTS, engine));
            test(&machine, &file, &device);
        }
    }
}

/// Hazard: a number in a configuration ends the process, since there is no memory for so many requests.
#[test]
fn a_depth_that_cannot_be_is_refused() {
    let (machine, file) = (audited_machine(), Scratch::with_swap(SLOTS));
    let most = FileDeviceOptions::MAX_DEPTH;
    let why = |depth| {
        let options = FileDeviceOptions { depth, ..FileDeviceOptions::default() };
        FileDevice::open(machine.memory().platform(), &file.0, options).unwrap_err().to_string()
    };
    assert!(why(0).ends_with("a depth of no request is too small"));
    for depth in [most + 1, usize::MAX] {
        assert!(
            why(depth).ends_with(&format!("a depth of {depth} requests is too large; {most} are the most"))
        );
    }
    for depth in [1, most] {
        with_engines(depth, |machine, _, device| {
            let pages = Frames::new(machine, 0);
            assert_eq!(finish(machine, device, io(Direction::Write, 3, pages.first, 1)), Ok(()));
        });
    }
}

/// Hazard: a table for all slots is larger than the host's memory.
#[test]
fn a_device_in_memory_of_the_host_has_no_more_slots_than_that_holds() {
    assert!(HostRam::new(usize::MAX).is_err() && HostRam::disk(usize::MAX / 64).is_err());
    assert!(HostRam::new(0).is_ok());
}

fn io(direction: Direction, slot: u64, pfn: Pfn, pages: u32) -> PageIo {
    PageIo { direction, slot, pfn, pages }
}

/// Waits for a completion, as the memory manager does.
fn wait(machine: &Machine, device: &FileDevice) {
    machine.memory().platform().park(device.wait_key(), &mut || !device.has_done());
}

fn submit(machine: &Machine, device: &FileDevice, request: PageIo) -> Submitted {
    // SAFETY: the frames are the test's, which frees none while the device has it.
    unsafe { device.submit(DeviceMemory::new(machine.memory().frames()), request) }
}

/// Does one request from submission to completion.
fn finish(machine: &Machine, device: &FileDevice, request: PageIo) -> Result<(), DeviceError> {
    match submit(machine, device, request) {
        Submitted::Done(result) => return result,
        Submitted::Begun => {}
        Submitted::QueueFull => panic!("nothing else is under way"),
    }
    let mut found = None;
    while found.is_none() {
        wait(machine, device);
        device.reap(DeviceMemory::new(machine.memory().frames()), &mut |io, result| {
            assert_eq!(io, request);
            found = Some(result);
        });
    }
    found.unwrap()
}

#[derive(Clone, Copy, Debug)]
struct Step {
    write: bool,
    slot: u64,
    pages: u64,
    byte: u8,
}

fn step() -> impl Strategy<Value = Step> {
    (any::<bool>(), 0..SLOTS, 1_u64..=8, any::<u8>()).prop_map(|(write, slot, pages, byte)| Step {
        write,
        slot,
        pages: pages.min(SLOTS - slot),
        byte,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_last_write_is_read(steps in vec(step(), 1..60)) {
        with_engines(8, |machine, _, device| {
            let frames = Frames::new(machine, 3);
            let mut kept: HashMap<u64, u8> = HashMap::new();
            for step in &steps {
                for page in 0..step.pages {
                    frames.fill(page, step.byte.wrapping_add(page as u8));
                }
                let direction = if step.write { Direction::Write } else { Direction::Read };
                let request = io(direction, step.slot, frames.first, step.pages as u32);
                assert_eq!(finish(machine, device, request), Ok(()));
                for page in 0..step.pages {
                    let slot = step.slot + page;
                    if step.write {
                        kept.insert(slot, step.byte.wrapping_add(page as u8));
                    } else {
                        // A new file reads as zeros.
                        assert_eq!(frames.byte(page), kept.get(&slot).copied().unwrap_or(0), "slot {slot}");
                    }
                }
            }
        });
    }
}

/// Requests that are all under way at once are each done once, and a full queue is reported.
#[test]
fn concurrent_requests_complete_once_each() {
    const DEPTH: u64 = 16;
    with_engines(DEPTH as usize, |machine, _, device| {
        let frames = Frames::new(machine, 7);
        for page in 0..SLOTS {
            frames.fill(page, page as u8 + 1);
        }
        for direction in [Direction::Write, Direction::Read] {
            let (mut begun, mut done) = (0, HashMap::new());
            let mut was_full = false;
            while (done.len() as u64) < SLOTS {
                while begun < SLOTS {
                    match submit(machine, device, io(direction, begun, frames.at(begun), 1)) {
                        Submitted::Begun => begun += 1,
                        Submitted::QueueFull => {
                            was_full = true;
                            assert_eq!(begun - done.len() as u64, DEPTH, "full with fewer under way");
                            break;
                        }
                        Submitted::Done(result) => panic!("{result:?}"),
                    }
                }
                wait(machine, device);
                device.reap(DeviceMemory::new(machine.memory().frames()), &mut |io, result| {
                    assert_eq!(result, Ok(()));
                    assert_eq!(done.insert(io.slot, io), None, "slot {} is done twice", io.slot);
                });
            }
            assert!(was_full);
            assert!(done.iter().all(|(slot, io)| *slot == io.slot && io.pfn == frames.at(*slot)));
            if direction == Direction::Write {
                for page in 0..SLOTS {
                    frames.fill(page, 0);
                }
            }
        }
        for page in 0..SLOTS {
            assert_eq!(frames.byte(page), page as u8 + 1);
        }
        assert!(!device.has_done());
    });
}

/// Hazard: the frames that a request of another machine names are taken for those of this one's RAM.
#[test]
fn requests_of_another_machine_are_refused() {
    with_engines(1, |machine, _, device| {
        let other = audited_machine();
        let frames = Frames::new(&other, 1);
        frames.fill(0, 5);
        for direction in [Direction::Write, Direction::Read] {
            let submitted = submit(&other, device, io(direction, 0, frames.at(0), 1));
            assert_eq!(submitted, Submitted::Done(Err(DeviceError::Io)));
        }
        assert_eq!(frames.byte(0), 5);
        let own = Frames::new(machine, 1);
        assert_eq!(finish(machine, device, io(Direction::Read, 0, own.at(0), 1)), Ok(()));
        assert_eq!(own.byte(0), 0, "nothing was written");
    });
}

/// Hazard: a machine takes the completions of another one, whose threads wait for them for ever.
#[test]
fn completions_are_told_to_the_machine_that_asked_for_them() {
    with_engines(1, |machine, _, device| {
        let other = audited_machine();
        let frames = Frames::new(machine, 1);
        let request = io(Direction::Read, 0, frames.first, 1);
        assert_eq!(submit(machine, device, request), Submitted::Begun);
        wait(machine, device);
        let none = &mut |io, result| panic!("{io:?}: {result:?}");
        device.reap(DeviceMemory::new(other.memory().frames()), none);
        let mut told = 0;
        device.reap(DeviceMemory::new(machine.memory().frames()), &mut |io, result| {
            assert_eq!((io, result), (request, Ok(())));
            told += 1;
        });
        assert_eq!(told, 1);
    });
}

/// Hazard: a discard of what is none of its slots makes a hole in the header, or behind the device, or a
/// panic.
#[test]
fn discards_outside_the_device_change_nothing() {
    with_engines(4, |machine, file, device| {
        let frames = Frames::new(machine, 1);
        frames.fill(0, 5);
        for slot in [0, SLOTS - 1] {
            assert_eq!(finish(machine, device, io(Direction::Write, slot, frames.at(0), 1)), Ok(()));
        }
        // What is behind it, in a file that has grown.
        let end = (SLOTS + 1) * PAGE as u64;
        File::options().write(true).open(&file.0).unwrap().write_all_at(&[7; PAGE], end).unwrap();
        let before = fs::read(&file.0).unwrap();
        let memory = DeviceMemory::new(machine.memory().frames());
        for slot in [u64::MAX, u64::MAX - 1, SLOTS, SLOTS - 1, 0] {
            for count in [2, SLOTS + 1, 1 << 52, u64::MAX] {
                if slot.checked_add(count).is_none_or(|end| end > SLOTS) {
                    device.discard(memory, slot, count);
                }
            }
        }
        [u64::MAX, SLOTS].into_iter().for_each(|slot| device.discard(memory, slot, 1));
        let other = audited_machine();
        device.discard(DeviceMemory::new(other.memory().frames()), 0, 1);
        assert!(fs::read(&file.0).unwrap() == before, "a hole");
        device.discard(memory, 0, 1);
        assert_eq!(finish(machine, device, io(Direction::Read, 0, frames.at(0), 1)), Ok(()));
        assert_eq!(frames.byte(0), 0);
    });
}

/// A device that is dropped with work under way finishes it.
#[test]
fn dropping_the_device_completes_all_requests() {
    for engine in [Engine::Ring, Engine::Pool] {
        let (machine, file) = (audited_machine(), Scratch::with_swap(SLOTS));
        let frames = Frames::new(&machine, 4);
        let Some(device) = open(&machine, &file, engine, 32) else { continue };
        for page in 0..16 {
            frames.fill(page, 0x40 + page as u8);
            let begun = submit(&machine, &device, io(Direction::Write, page, frames.at(page), 1));
            assert_eq!(begun, Submitted::Begun);
        }
        drop(device);
        let bytes = fs::read(&file.0).unwrap();
        for page in 0..16 {
            assert!(bytes[(page + 1) * PAGE..(page + 2) * PAGE].iter().all(|it| *it == 0x40 + page as u8));
        }
    }
}

#[test]
fn io_errors_and_bad_slots_are_reported() {
    with_engines(4, |machine, file, device| {
        let frames = Frames::new(machine, 1);
        for (slot, pages) in [(SLOTS, 1), (SLOTS - 1, 2), (u64::MAX, 1)] {
            let request = io(Direction::Read, slot, frames.first, pages);
            assert_eq!(finish(machine, device, request), Err(DeviceError::OutOfRange));
        }
        assert_eq!(finish(machine, device, io(Direction::Read, SLOTS - 2, frames.first, 2)), Ok(()));
        // The file is truncated behind the device's back, in the middle of the request.
        File::options().write(true).open(&file.0).unwrap().set_len((SLOTS) * PAGE as u64).unwrap();
        for slot in [SLOTS - 2, SLOTS - 1] {
            let request = io(Direction::Read, slot, frames.first, (SLOTS - slot) as u32);
            assert_eq!(finish(machine, device, request), Err(DeviceError::Io));
        }
        assert_eq!(finish(machine, device, io(Direction::Read, 0, frames.first, 1)), Ok(()));
    });
}

#[test]
fn a_discarded_slot_takes_no_space_in_the_file() {
    with_engines(4, |machine, file, device| {
        let frames = Frames::new(machine, 5);
        (0..32).for_each(|page| frames.fill(page, 9));
        assert_eq!(finish(machine, device, io(Direction::Write, 0, frames.first, 32)), Ok(()));
        let blocks = || fs::metadata(&file.0).unwrap().blocks();
        let before = blocks();
        device.discard(DeviceMemory::new(machine.memory().frames()), 0, 32);
        assert!(blocks() < before, "{before} blocks, then {}", blocks());
        assert_eq!(finish(machine, device, io(Direction::Read, 7, frames.first, 1)), Ok(()));
        assert_eq!(frames.byte(0), 0);
    });
}

#[test]
fn wrong_files_are_refused_with_their_name() {
    let machine = audited_machine();
    let refuse = |file: &Scratch, word: &str| {
        let error = FileDevice::open(machine.memory().platform(), &file.0, FileDeviceOptions::default());
        let text = error.expect_err(word).to_string();
        assert!(text.contains(word) && text.starts_with(file.0.to_str().unwrap()), "{text}");
        assert!(!text.contains('\n'));
    };
    refuse(&Scratch::new(), "No such file");
    let change = |at: u64, bytes: &[u8]| {
        let file = Scratch::with_swap(8);
        File::options().write(true).open(&file.0).unwrap().write_all_at(bytes, at).unwrap();
        file
    };
    refuse(&change(4090, b"x"), "signature");
    refuse(&change(1024, &[2]), "version 2");
    refuse(&change(1028, &[9]), "10 pages, but there are 9");
    refuse(&change(1028, &[0]), "two pages");
    refuse(&change(1032, &[3]), "3 bad pages");
    let short = Scratch::new();
    fs::write(&short.0, b"short").unwrap();
    refuse(&short, "two pages");
    assert!(make_swap(&Scratch::new().0, 0).is_err());

    let busy = Scratch::with_swap(8);
    let first = FileDevice::open(machine.memory().platform(), &busy.0, FileDeviceOptions::default());
    refuse(&busy, "in use");
    drop(first);
    assert!(FileDevice::open(machine.memory().platform(), &busy.0, FileDeviceOptions::default()).is_ok());
}

/// Others may make links in the folder where a swap file is made.
#[test]
fn a_link_is_not_written_through_and_no_file_is_formatted() {
    let folder = tempfile::tempdir().unwrap();
    let [letter, link, dangling] = ["letter", "link", "dangling"].map(|name| folder.path().join(name));
    fs::write(&letter, "a letter").unwrap();
    std::os::unix::fs::symlink(&letter, &link).unwrap();
    std::os::unix::fs::symlink(folder.path().join("made"), &dangling).unwrap();
    for path in [&letter, &link, &dangling] {
        assert!(make_swap(path, 8).is_err(), "{}", path.display());
    }
    assert_eq!(fs::read(&letter).unwrap(), b"a letter");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    assert!(make_swap(&folder.path().join("empty"), 0).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "what has no header is removed");
}

/// What mkswap itself makes can be used, if it is installed.
#[test]
fn a_file_of_mkswap_is_accepted() {
    let file = Scratch::new();
    File::create(&file.0).unwrap().set_len(64 * PAGE as u64).unwrap();
    let paths = ["/usr/sbin/mkswap", "/sbin/mkswap"];
    let Some(made) =
        paths.iter().find_map(|path| std::process::Command::new(path).arg(&file.0).output().ok())
    else {
        return eprintln!("skipped: there is no mkswap");
    };
    assert!(made.status.success(), "{made:?}");
    let machine = audited_machine();
    let device =
        FileDevice::open(machine.memory().platform(), &file.0, FileDeviceOptions::default()).unwrap();
    assert_eq!(device.slots(), 63);
}
