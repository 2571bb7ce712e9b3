//! Hazard: two memory managers of one machine. Handles of a machine are copied by safe code, so its RAM has
//! one owner at a time, and changes hands only when the earlier one is gone.

use quire_arch::{Order, Platform, VirtAddr};
use quire_frame::{AllocRequest, BootError, FailSite, FrameConfig, FrameViolation, Frames};
use quire_host::{HostConfig, HostPlatform};
use quire_mm::space::{MapRequest, Protection};
use quire_mm::{BuildError, Memory, MemoryConfig};

const RW: Protection = Protection::READ.union(Protection::WRITE);
const PAGE: u64 = 4096;

fn platform(bytes: u64) -> HostPlatform {
    HostPlatform::new(&HostConfig::with_ram(bytes).cpus(2).paranoid()).unwrap()
}

fn new_memory(platform: &HostPlatform) -> Result<Memory<HostPlatform>, BuildError> {
    Memory::new(platform.clone(), MemoryConfig { min_free_kib: Some(0), ..MemoryConfig::default() })
}

fn violations(frames: &Frames<HostPlatform>) -> Vec<FrameViolation> {
    let mut found = Vec::new();
    frames.audit().validate(&mut |violation| found.push(violation));
    found
}

#[track_caller]
fn assert_audit(memory: &Memory<HostPlatform>) {
    assert!(memory.audit(|violation| panic!("{violation}")).is_ok());
}

#[test]
fn frames_of_one_machine_have_one_manager() {
    let platform = platform(4 << 20);
    let new = || Frames::new(platform.clone(), FrameConfig::default());
    let first = new().unwrap();
    let pin = first.platform().pin();
    let block = first.allocate(&pin, AllocRequest::new(Order::PMD, FailSite::new("test"))).unwrap();
    let free = first.reports().free_frames();
    assert_eq!(new().map(drop), Err(BootError::RamTaken));
    assert_eq!(new_memory(&platform).map(drop), Err(BuildError::Boot(BootError::RamTaken)));
    assert_eq!((first.reports().free_frames(), violations(&first)), (free, vec![]), "nothing changed");
    first.free(&pin, block, Order::PMD).unwrap();
    assert_eq!(violations(&first), []);
    drop(pin);
    drop(first);
    let next = new().expect("the first is gone");
    assert_eq!(violations(&next), []);
}

/// Programs of the first keep their pages beside the attempt, and those of a later one see nothing of them:
/// neither its frames, nor what the TLBs still have under its tags.
#[test]
fn a_machine_has_one_memory_at_a_time() {
    let platform = platform(8 << 20);
    let cpus = [0, 1].map(|number| platform.vcpu(number).unwrap());
    let mut addr = None;
    for round in 0..3 {
        let memory = new_memory(&platform).expect("the one before is gone");
        {
            let space = memory.create_space().unwrap();
            let base = space.mmap(&MapRequest::anonymous(64 * PAGE, RW)).unwrap();
            assert_eq!(*addr.get_or_insert(base), base, "each program uses the same addresses");
            let at = |page: u64| VirtAddr(base.0 + page * PAGE);
            for page in 0..64 {
                // Not all of the same pages as before, so that a translation that is left over would be seen.
                let (reader, writer) = (&cpus[page as usize % 2], &cpus[(page as usize + round) % 2]);
                assert_eq!(reader.program(&space).read_u64(at(page)), Ok(0));
                writer.program(&space).write_u64(at(page), page + 1).unwrap();
            }
            assert_eq!(new_memory(&platform).map(drop), Err(BuildError::Boot(BootError::RamTaken)));
            for page in 0..64 {
                assert_eq!(cpus[page as usize % 2].program(&space).read_u64(at(page)), Ok(page + 1));
            }
            assert_audit(&memory);
        }
        assert_audit(&memory);
        assert!(platform.check_suspects().is_empty());
    }
}

/// Every layer fails at some size. Had a failure kept the RAM, the second attempt would say so.
#[test]
fn a_memory_that_cannot_start_keeps_no_claim() {
    let (mut boot, mut start, mut built) = (0, 0, 0);
    for pages in 1..=64 {
        let platform = platform(pages * PAGE);
        let [first, second] = [0, 1].map(|_| new_memory(&platform).map(drop));
        assert_eq!(first, second, "{pages} pages");
        match first {
            Err(BuildError::Boot(BootError::NoRoom { .. })) => boot += 1,
            Err(BuildError::Start(_)) => start += 1,
            Ok(()) => built += 1,
            Err(other) => panic!("{pages} pages: {other}"),
        }
    }
    assert!(boot > 0 && start > 0 && built > 0, "{boot}, {start}, {built}");
}

/// Many attempts at once: one of them gets the RAM.
#[test]
fn of_attempts_at_once_one_gets_the_machine() {
    let platform = platform(4 << 20);
    for _ in 0..20 {
        let made: Vec<_> = std::thread::scope(|scope| {
            let attempts: Vec<_> = (0..2)
                .map(|cpu| {
                    let platform = &platform;
                    scope.spawn(move || {
                        let vcpu = platform.vcpu(cpu).unwrap();
                        vcpu.run(|| Frames::new(platform.clone(), FrameConfig::default()))
                    })
                })
                .collect();
            attempts.into_iter().map(|attempt| attempt.join().unwrap()).collect()
        });
        let refused = made.iter().filter(|made| matches!(made, Err(BootError::RamTaken))).count();
        assert_eq!(refused, 1);
        assert!(made.iter().flatten().all(|frames| violations(frames).is_empty()));
    }
}
