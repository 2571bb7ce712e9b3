//! Devices that fail: only unreadable pages are lost, and every access to one gets the error.

#[allow(dead_code, reason = "each test binary uses its own part")]
use crate::common::*;
use crate::disk::{Disk, Medium, lock};
use quire_host::swap::{Completion, FileDevice, FileDeviceOptions, SlowConfig, SlowDevice, make_swap};
use quire_swap::{CODEC_OUTPUT, Codec, Damaged, Lz4};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Pages of the program.
const PAGES: u64 = 8;
const BUS: AccessError<FaultError> = AccessError::Fault(FaultError::Bus);

/// A machine where private pages come in folios of `order` wherever they fit.
fn machine_of_order(order: u8) -> Machine {
    Setup::mib(16).reserve().folios(orders(&[order])).build()
}

/// The devices: one completes at once, the other later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    AtOnce,
    Later,
}

fn swapon(machine: &Machine, when: When) -> (DeviceId, Arc<Mutex<Medium>>) {
    let (disk, medium) = Disk::new(1024);
    let options = SwapOnOptions::default();
    let id = match when {
        When::AtOnce => machine.memory().swapon(disk, options),
        When::Later => {
            let config = SlowConfig { completion: Completion::AfterReaps(2), ..SlowConfig::default() };
            machine.memory().swapon(SlowDevice::new(disk, config), options)
        }
    };
    (id.unwrap(), medium)
}

/// A program with [`PAGES`] pages.
struct Scene<'m> {
    machine: &'m Machine,
    cpu: Vcpu,
    space: HostSpace<'m>,
    area: VirtAddr,
}

impl<'m> Scene<'m> {
    fn new(machine: &'m Machine) -> Self {
        let (cpu, space) = (machine.vcpu(0).unwrap(), create_space(machine));
        let area = map_at(&space, GIB, PAGES * PAGE, RW);
        let scene = Self { machine, cpu, space, area };
        (0..PAGES).for_each(|at| scene.write(at, 100 + at).unwrap());
        scene
    }

    fn write(&self, at: u64, value: u64) -> AccessResult<()> {
        self.cpu.program(&self.space).write_u64(page(self.area, at), value)
    }

    fn read(&self, at: u64) -> AccessResult<u64> {
        self.cpu.program(&self.space).read_u64(page(self.area, at))
    }

    fn out(&self) {
        self.space.madvise(self.area, PAGES * PAGE, Advice::PageOut).unwrap();
        // What a device had to be waited for is freed by the next look.
        for _ in 0..4 {
            self.machine.memory().swap().io().reap();
            self.machine.memory().reclaim(MemcgId::ROOT, 64);
        }
    }

    /// The same, until all pages are swapped out.
    fn out_whole(&self) {
        while self.space.figures().resident > 0 {
            self.out();
            std::thread::yield_now();
        }
    }

    fn swapped(&self) -> u64 {
        self.space.figures().swapped / PAGE
    }

    /// Panics unless each page reads as it was written.
    fn assert_whole(&self) {
        for at in 0..PAGES {
            assert_eq!(self.read(at), Ok(100 + at), "page {at}");
        }
    }
}

/// Calls `check` for small pages and for large folios, on a device of each kind.
fn everywhere(check: impl Fn(&Machine, When, u64)) {
    for when in [When::AtOnce, When::Later] {
        for order in [0, 2] {
            println!("order {order}, {when:?}");
            let machine = machine_of_order(order);
            check(&machine, when, 1 << order);
            assert_audit(&machine);
        }
    }
}

#[test]
fn a_write_that_fails_keeps_the_page_in_memory() {
    everywhere(|machine, when, pages| {
        for nth in 1..=PAGES / pages {
            let (id, medium) = swapon(machine, when);
            lock(&medium).bad_writes.insert(nth);
            let scene = Scene::new(machine);
            scene.space.madvise(scene.area, PAGES * PAGE, Advice::PageOut).unwrap();
            machine.memory().swap().io().reap();
            machine.memory().swap().io().reap();
            assert_audit(machine);
            assert_eq!(lock(&medium).writes, PAGES / pages, "each folio is one request");
            assert_eq!(lock(&medium).stored().len() as u64, PAGES - pages, "write {nth} failed");
            // Without a device to read from: what could not be written was never freed.
            lock(&medium).unreadable = true;
            let lost = (0..PAGES).filter(|&at| scene.read(at) == Err(BUS)).count() as u64;
            assert!(lost <= PAGES - pages, "{lost} pages are lost");
            lock(&medium).unreadable = false;
            scene.assert_whole();
            // The next one succeeds.
            scene.out();
            assert_eq!(scene.swapped(), PAGES);
            scene.assert_whole();
            machine.memory().swapoff(id, || true).unwrap();
        }
    });
}

#[test]
fn a_device_that_takes_nothing_loses_nothing() {
    everywhere(|machine, when, _| {
        let (id, medium) = swapon(machine, when);
        let scene = Scene::new(machine);
        lock(&medium).unwritable = true;
        for _ in 0..3 {
            scene.out();
            assert_audit(machine);
            assert_eq!(lock(&medium).stored().len(), 0);
            scene.assert_whole();
        }
        assert!(lock(&medium).writes >= 3);
        machine.memory().swapoff(id, || true).unwrap();
        assert!(lock(&medium).closed);
        scene.assert_whole();
    });
}

#[test]
fn a_read_that_fails_is_sigbus_and_can_be_tried_again() {
    everywhere(|machine, when, pages| {
        for nth in 1..=PAGES {
            let (id, medium) = swapon(machine, when);
            let scene = Scene::new(machine);
            scene.out();
            assert_eq!(scene.swapped(), PAGES);
            lock(&medium).bad_reads.insert(nth);
            let mut failed = 0;
            for at in 0..PAGES {
                match scene.read(at) {
                    Ok(value) => assert_eq!(value, 100 + at),
                    Err(error) => {
                        assert_eq!(error, BUS);
                        failed += 1;
                        assert_audit(machine);
                        // The device has recovered.
                        assert_eq!(scene.read(at), Ok(100 + at));
                    }
                }
            }
            // One request reads all pages of a large folio, so that the later ones never happen; if it fails
            // the page is read alone. A failed readahead is not reported.
            let most = u64::from(lock(&medium).reads >= nth && pages == 1);
            assert!(failed <= most, "read {nth}");
            assert!(failed == most || when == When::Later, "read {nth}");
            scene.assert_whole();
            assert_eq!(scene.swapped(), 0);
            machine.memory().swapoff(id, || true).unwrap();
        }
    });
}

/// The slot of one page cannot be read. A large folio is read as a whole first, then page by page.
#[test]
fn a_bad_slot_costs_its_page_only() {
    everywhere(|machine, when, _| {
        let (_, medium) = swapon(machine, when);
        let scene = Scene::new(machine);
        scene.out();
        let bad = lock(&medium).stored()[1];
        lock(&medium).bad_slots.insert(bad);
        let refused: Vec<u64> = (0..PAGES).filter(|&at| scene.read(at) == Err(BUS)).collect();
        assert_eq!(refused.len(), 1, "{refused:?} were refused");
        for at in (0..PAGES).filter(|at| !refused.contains(at)) {
            assert_eq!(scene.read(at), Ok(100 + at));
        }
        assert_audit(machine);
        // Writing needs the old contents too.
        assert_eq!(scene.write(refused[0], 100 + refused[0]), Err(BUS));
        lock(&medium).bad_slots.clear();
        scene.assert_whole();
    });
}

#[test]
fn swapoff_poisons_what_cannot_be_read_and_nothing_else() {
    everywhere(|machine, when, _| {
        let before = in_use(machine);
        let (id, medium) = swapon(machine, when);
        let scene = Scene::new(machine);
        let child = {
            scene.out();
            scene.space.fork().unwrap()
        };
        assert_eq!(scene.swapped(), PAGES);
        let bad: Vec<u64> = lock(&medium).stored().into_iter().skip(2).step_by(3).collect();
        lock(&medium).bad_slots.extend(bad.iter().copied());
        machine.memory().swapoff(id, || true).unwrap();
        assert_audit(machine);
        assert!(lock(&medium).closed);
        assert_eq!(machine.memory().swap().devices().reports().count(), 0);
        assert_eq!((scene.swapped(), child.figures().swapped), (0, 0));
        lock(&medium).bad_slots.clear();
        let mut lost = 0;
        for at in 0..PAGES {
            match scene.read(at) {
                Ok(value) => assert_eq!(value, 100 + at, "page {at}"),
                Err(error) => {
                    assert_eq!(error, BUS);
                    assert_eq!(scene.write(at, 7), Err(BUS), "poison stays");
                    assert_eq!(scene.cpu.program(&child).read_u64(page(scene.area, at)), Err(BUS));
                    lost += 1;
                }
            }
        }
        assert_eq!(lost, bad.len(), "exactly the pages that could not be read");
        // A process that unmaps the page gets a new one.
        scene.space.madvise(scene.area, PAGES * PAGE, Advice::DontNeed).unwrap();
        (0..PAGES).for_each(|at| assert_eq!(scene.read(at), Ok(0)));
        drop((scene, child));
        assert_eq!(in_use(machine), before);
    });
}

#[test]
fn calls_that_need_an_unreadable_page_say_so() {
    everywhere(|machine, when, _| {
        let (_, medium) = swapon(machine, when);
        let scene = Scene::new(machine);
        scene.out();
        lock(&medium).unreadable = true;
        let (space, area) = (&scene.space, scene.area);
        assert!(space.pin_page(area, Access::Read).is_err());
        let populate = space.madvise(area, PAGE, Advice::PopulateRead).map_err(Error::errno);
        assert_eq!(populate, Err(Errno::EFAULT), "as Linux reports SIGBUS");
        assert_audit(machine);
        lock(&medium).unreadable = false;
        scene.assert_whole();
    });
}

/// Some pages of a file that has become too short are gone.
#[test]
fn a_file_that_was_cut_off_is_sigbus() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("swap");
    make_swap(&path, 256).unwrap();
    let machine = machine_of_order(0);
    let device = FileDevice::open(machine.memory().platform(), &path, FileDeviceOptions::default()).unwrap();
    let id = swap_on(&machine, device);
    let scene = Scene::new(&machine);
    scene.out_whole();
    assert_eq!(scene.swapped(), PAGES);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(PAGE).unwrap();
    let lost = (0..PAGES).filter(|&at| scene.read(at) == Err(BUS)).count() as u64;
    assert_eq!(lost, PAGES);
    assert_audit(&machine);
    file.set_len(len).unwrap();
    // What was cut off reads as zeros now, which cannot be noticed.
    (0..PAGES).for_each(|at| assert_eq!(scene.read(at), Ok(0)));
    machine.memory().swapoff(id, || true).unwrap();
}

/// Compresses as LZ4 does, and reports all as damaged if it is told so.
struct Moody(Arc<AtomicBool>);

impl Codec for Moody {
    type Workspace = <Lz4 as Codec>::Workspace;

    const NAME: &'static str = "moody";

    fn init<'p>(&self, place: &'p mut MaybeUninit<Self::Workspace>) -> Option<&'p mut Self::Workspace> {
        Lz4.init(place)
    }

    fn compress(
        &self,
        workspace: &mut Self::Workspace,
        page: &[u8; PAGE as usize],
        output: &mut [u8; CODEC_OUTPUT],
    ) -> Option<usize> {
        Lz4.compress(workspace, page, output)
    }

    fn decompress(
        &self,
        workspace: &mut Self::Workspace,
        compressed: &[u8],
        page: &mut [u8; PAGE as usize],
    ) -> Result<(), Damaged> {
        if self.0.load(Ordering::Relaxed) {
            // The contents of the page are undefined then.
            page.fill(0xdd);
            return Err(Damaged);
        }
        Lz4.decompress(workspace, compressed, page)
    }
}

#[test]
fn damaged_compressed_data_is_sigbus() {
    for order in [0, 2] {
        let machine = machine_of_order(order);
        let damaged = Arc::new(AtomicBool::new(false));
        let device =
            CompressedRam::new(machine.memory().frames(), 1024, Moody(Arc::clone(&damaged))).unwrap();
        let id = swap_on(&machine, device);
        let scene = Scene::new(&machine);
        scene.out();
        assert_eq!(scene.swapped(), PAGES);
        damaged.store(true, Ordering::Relaxed);
        (0..PAGES).for_each(|at| assert_eq!(scene.read(at), Err(BUS)));
        assert_audit(&machine);
        damaged.store(false, Ordering::Relaxed);
        scene.assert_whole();
        scene.out();
        damaged.store(true, Ordering::Relaxed);
        machine.memory().swapoff(id, || true).unwrap();
        damaged.store(false, Ordering::Relaxed);
        (0..PAGES).for_each(|at| assert_eq!(scene.read(at), Err(BUS), "poisoned"));
        assert_audit(&machine);
    }
}

/// All sharers of an unreadable page get the error, and all can read it once the device has recovered.
#[test]
fn pages_that_are_waited_for_together_fail_together() {
    let machine = machine_of_order(0);
    let (_, medium) = swapon(&machine, When::AtOnce);
    let scene = Scene::new(&machine);
    scene.out();
    let children: Vec<HostSpace<'_>> = (0..3).map(|_| scene.space.fork().unwrap()).collect();
    lock(&medium).unreadable = true;
    for space in &children {
        assert_eq!(scene.cpu.program(space).read_u64(scene.area), Err(BUS));
    }
    lock(&medium).unreadable = false;
    for space in &children {
        assert_eq!(scene.cpu.program(space).read_u64(scene.area), Ok(100));
    }
    assert_audit(&machine);
}
